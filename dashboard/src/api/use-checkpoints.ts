/** The checkpoints of a job, read again when the timeline has a new one, and requests to verify one. */

import { useMutation, type UseMutationResult, useQuery, type UseQueryResult } from "@tanstack/react-query";

import type { components } from "../../types/schema";
import { ask, type Refused } from "./http";
import { useLive } from "./use-live";
import type { Check } from "./wire";

type Checkpoints = components["schemas"]["Checkpoints"];

/** Return the newest ones; nothing is asked while nothing happens to any. */
export function useCheckpoints(job: string, limit: number): UseQueryResult<Checkpoints, Refused> {
  const { value } = useLive({ topic: "timeline", job, limit: 500 });
  const news = value?.items.findLast((entry) => entry.kind === "checkpoint")?.key ?? "";
  return useQuery<Checkpoints, Refused>({
    queryKey: ["checkpoints", job, limit, news],
    queryFn: ({ signal }) =>
      ask<Checkpoints>(`/api/jobs/${encodeURIComponent(job)}/checkpoints?limit=${limit}`, { signal }),
    enabled: value !== undefined,
    placeholderData: (before) => before,
    gcTime: 0,
  });
}

export interface Checks {
  /** The last one of each step. */
  byStep: ReadonlyMap<number, Check>;
  begin: UseMutationResult<Check, Refused, number>;
}

/** Return what was read of a job, and how to have more read: by step. */
export function useChecks(job: string): Checks {
  const { value } = useLive({ topic: "checks", job });
  const begin = useMutation<Check, Refused, number>({
    mutationFn: (step) =>
      ask<Check>(`/api/jobs/${encodeURIComponent(job)}/checkpoints/${step}/verify`, { method: "POST" }),
  });
  return { byStep: new Map(value?.items.map((check) => [check.step, check])), begin };
}
