/** Submit a job: what a spec may have, whether one would be taken, and then the job. */

import { useMutation, useQuery, type UseMutationResult, type UseQueryResult } from "@tanstack/react-query";

import { ask, type Refused } from "./http";
import type { Job, Problem } from "./wire";

export type Spec = Record<string, unknown>;

/** A part of a JSON schema, as far as specs use it. */
export interface Schema {
  type?: string | string[];
  enum?: string[];
  default?: unknown;
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  additionalProperties?: Schema | boolean;
  anyOf?: Schema[];
  $ref?: string;
}

export type Schemas = Record<string, Schema>;
export type Format = "yaml" | "json";

export interface Checked {
  ok: boolean;
  spec: Spec | null;
  yaml: string | null;
  refused: Problem | null;
}

/** What is checked: a spec, or the user's text. */
export type Draft = { spec: Spec } | { text: string; format: Format };

export interface Submission {
  spec: Spec;
  cwd: string;
  python: string;
  key: string;
}

/** Ask the server once what a spec may have. */
export function useSchemas(): UseQueryResult<Schemas, Refused> {
  return useQuery<Schemas, Refused>({
    queryKey: ["schemas"],
    queryFn: async ({ signal }) => {
      const found = await ask<{ components: { schemas: Schemas } }>("/openapi.json", { signal });
      return found.components.schemas;
    },
  });
}

/** Ask whether a draft would be taken; `null` asks nothing. */
export function useCheck(draft: Draft | null): UseQueryResult<Checked, Refused> {
  return useQuery<Checked, Refused>({
    queryKey: ["check", draft],
    queryFn: ({ signal }) => ask<Checked>("/api/specs/check", { method: "POST", ...sent(draft ?? { spec: {} }), signal }),
    enabled: draft !== null,
    placeholderData: (before) => before,
    gcTime: 0,
  });
}

/** Submit a spec. With one key it is submitted once, however often it is sent. */
export function useSubmit(): UseMutationResult<Job, Refused, Submission> {
  return useMutation<Job, Refused, Submission>({
    mutationFn: ({ spec, cwd, python, key }) => {
      const where = new URLSearchParams();
      if (cwd) where.set("cwd", cwd);
      if (python) where.set("python", python);
      return ask<Job>(`/api/jobs?${where.toString()}`, { method: "POST", body: spec, key });
    },
  });
}

function sent(draft: Draft): { body: Spec } | { text: { type: string; words: string } } {
  if ("spec" in draft) return { body: draft.spec };
  return { text: { type: `application/${draft.format}`, words: draft.text } };
}
