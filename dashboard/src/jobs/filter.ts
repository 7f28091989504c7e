/** Which jobs are shown: by state and by words. Pure; the address has both. */

import type { JobRow } from "../api/wire";

export const STATES = ["RUNNING", "QUEUED", "RECOVERING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED"] as const;

/** Return the jobs of a state that have every word somewhere. */
export function filtered(jobs: readonly JobRow[], state: string, words: string): JobRow[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return jobs.filter((job) => {
    if (state && job.state !== state.toUpperCase()) return false;
    const text = [job.name, job.id, job.owner, job.project, job.reason, ...job.tags].join(" ").toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}

/** Return how many jobs there are of each state. */
export function counted(jobs: readonly JobRow[]): Record<string, number> {
  const found: Record<string, number> = {};
  for (const { state } of jobs) found[state] = (found[state] ?? 0) + 1;
  return found;
}
