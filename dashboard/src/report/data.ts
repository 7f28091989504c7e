/** What `loom export` puts into a report, and the curves that are made of it. Pure. */

import { appended } from "../api/merge";
import type { Recorded } from "../api/use-record";
import type { Buckets, Checkpoint, Clocks, Curve, Entry, JobRow, LogLine, Points, Rank } from "../api/wire";

export interface EndedRank extends Rank {
  exit_code: number | null;
}

export interface Tail {
  rank: number;
  role: string;
  /** There are lines before these. */
  older: boolean;
  items: LogLine[];
}

/** Points of a curve; what later generations have replaced of it is there if there is any. */
type StoredPoints = Points & Partial<Pick<Curve, "has_replaced" | "replaced">>;

export interface RunData {
  job: JobRow;
  clocks: Clocks;
  ranks: EndedRank[];
  /** Point by point where all fit, else in buckets. */
  series: (Curve | StoredPoints)[];
  timeline: Entry[];
  checkpoints: Checkpoint[];
  config: Record<string, unknown>;
  spec: Record<string, unknown> | null;
  recorded: Recorded | null;
  logs: Tail[];
  notes: string[];
}

export interface ReportData {
  version: number;
  made_at: string;
  made_by: string;
  runs: RunData[];
  /** How several runs differ, as `loom compare` prints it: a row a name, a column a run. */
  compared: string[][];
}

/** A curve, and whose it is where there are several. */
export interface Named {
  label: string;
  curve: Curve;
}

/** Return a run's curves, each point a bucket where there are no others. */
export function curvesOf(run: RunData): Curve[] {
  return run.series.flatMap((one) => {
    if (!("values" in one)) return [one];
    const { has_replaced = false, replaced = [] } = one;
    return appended([], [one]).map((curve) => ({ ...curve, has_replaced, replaced }));
  });
}

/** Return a curve as it is where what it replaced is not to be seen. */
export function withoutReplaced(curve: Curve): Curve {
  return curve.replaced.length ? { ...curve, replaced: [] } : curve;
}

/** Return what the metrics of all runs are called. */
export function metricsOf(runs: readonly (readonly Curve[])[]): string[] {
  return [...new Set(runs.flatMap((curves) => curves.map(({ name }) => name)))].sort();
}

/** Return the curves of a metric: of one rank or of all, of the lowest that has it by default. */
export function ofRank(curves: readonly Curve[], name: string, rank: string): Named[] {
  const own = curves.filter((one) => one.name === name).sort((a, b) => a.rank - b.rank);
  const wanted = rank === "all" ? own : rank === "" ? own.slice(0, 1) : own.filter((one) => one.rank === Number(rank));
  return wanted.map((curve) => ({ label: `rank ${curve.rank}`, curve }));
}

/** Return the curve of a metric of each run that has it. */
export function ofRuns(runs: readonly (readonly Curve[])[], labels: readonly string[], name: string): Named[] {
  return runs.flatMap((curves, at) => {
    const [first] = ofRank(curves, name, "");
    return first ? [{ label: labels[at] ?? "", curve: first.curve }] : [];
  });
}

/** Return a curve whose times are seconds since its run began. */
export function since(curve: Curve, start: number): Curve {
  const moved = <T extends Buckets>(one: T): T => ({ ...one, times: one.times.map((time) => time - start) });
  return { ...moved(curve), replaced: curve.replaced.map(moved) };
}

/** Return when a run began, in unix seconds. */
export function startOf(job: JobRow): number {
  return Date.parse(job.started_at ?? job.created_at ?? "") / 1000 || 0;
}

/** Return how long a run took; of a running one, until the report was made. */
export function tookOf(job: JobRow, madeAt: string): number | null {
  const start = startOf(job);
  const end = Date.parse(job.ended_at ?? madeAt) / 1000;
  return start && end >= start ? end - start : null;
}
