/** The checkpoints of a job: asked for once, and again when the timeline tells of one. */

import { useQuery, type UseQueryResult } from "@tanstack/react-query";

import { ask, type Refused } from "./http";
import type { components } from "../../types/schema";
import { useLive } from "./use-live";

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
