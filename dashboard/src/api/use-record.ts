/** What a job was made of: its spec, and what was recorded of its surroundings. Neither changes. */

import { useQuery, type UseQueryResult } from "@tanstack/react-query";

import { ask, Refused } from "./http";

/** What was recorded when the job began; each part may be missing. */
export interface Recorded {
  cwd?: string | null;
  argv?: string[] | null;
  interpreter?: string | null;
  /** Values are kept of the few that cannot be secrets. */
  env?: { names?: string[]; values?: Record<string, string> } | null;
  git?: {
    commit?: string | null;
    branch?: string | null;
    dirty?: boolean;
    remote?: string | null;
    root?: string;
    untracked?: unknown;
    note?: string;
  } | null;
  packages?: Record<string, string> | null;
  python?: string | null;
  torch?: string | null;
  hardware?: { cpu?: string | null; cores?: number; memory_mb?: number | null; nodes?: string[] } | null;
  notes?: string[] | null;
}

export interface RunRecord {
  spec: Record<string, unknown> | null;
  recorded: Recorded | null;
}

/** Return the record of a job; one that was never submitted as a spec has none. */
export function useRecord(job: string): UseQueryResult<RunRecord, Refused> {
  return useQuery<RunRecord, Refused>({ queryKey: ["record", job], queryFn: ({ signal }) => record(job, signal) });
}

async function record(job: string, signal: AbortSignal): Promise<RunRecord> {
  const id = encodeURIComponent(job);
  const run = await found<{ recorded?: Recorded | null; spec?: RunRecord["spec"] }>(`/api/experiments/${id}`, signal);
  const spec = await found<Record<string, unknown>>(`/api/jobs/${id}/spec`, signal);
  return { spec: spec ?? run?.spec ?? null, recorded: run?.recorded ?? null };
}

/** Return what is there, or null where there is no such thing. */
async function found<T>(path: string, signal: AbortSignal): Promise<T | null> {
  return ask<T>(path, { signal }).catch((error: unknown) => {
    if (error instanceof Refused && error.problem.status === 404) return null;
    throw error;
  });
}
