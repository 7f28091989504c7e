/** Have a checkpoint read and hashed by the server, and hear how far that is. */

import { useMutation, type UseMutationResult } from "@tanstack/react-query";

import { ask, type Refused } from "./http";
import { useLive } from "./use-live";
import type { Check } from "./wire";

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
