/** The runs of the table, with newer values from the stream. Pure. */

import type { ListedRun } from "../api/use-experiments";
import type { JobRow } from "../api/wire";

/** Return runs as they are now: state, step, end, and the loss that the list of jobs shows. */
export function livened(runs: readonly ListedRun[], jobs: readonly JobRow[]): ListedRun[] {
  const found = new Map(jobs.map((job) => [job.id, job]));
  return runs.map((run) => {
    const job = found.get(run.job_id);
    if (!job || (job.state === run.state && job.ended_at !== null)) return run;
    const name = job.spark_name;
    const metric = name === null ? undefined : run.metrics[name];
    const metrics = name !== null && metric ? { ...run.metrics, [name]: { ...metric, last: job.loss } } : run.metrics;
    return { ...run, state: job.state, step: job.step, started_at: job.started_at, ended_at: job.ended_at, metrics };
  });
}

/** Return a word that is another one whenever a run has begun, ended or changed its state. */
export function newsOf(jobs: readonly JobRow[] | undefined): string {
  return (jobs ?? []).map((job) => `${job.id}:${job.state}`).join(" ");
}

/** Return a word that is another one when one of these runs is in another state, or some percent further. */
export function standing(jobs: readonly JobRow[], asked: readonly string[]): string {
  const known = jobs.filter((job) => asked.includes(job.id));
  const place = (step: number | null) => (step === null ? "" : Number(step.toPrecision(2)));
  return known.map(({ id, state, step }) => `${id}:${state}:${place(step)}`).join(" ");
}
