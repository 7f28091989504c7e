/** The buckets of curves as rows of numbers, the newest first. Pure. */

import type { Buckets, Curve } from "../../api/wire";
import { type Across, xsOf } from "./columns";
import type { Zoom } from "./words";

export interface BucketRow {
  key: string;
  rank: number;
  /** Of what a later generation has replaced, which one reported it. */
  replaced: number | null;
  first: number;
  step: number;
  /** Seconds since 1970. */
  time: number;
  last: number | null;
  min: number | null;
  max: number | null;
  count: number;
  /** How many of them were no number. */
  nans: number;
}

/** Return what a chart of these curves draws, as rows: those in the range that is zoomed to, or all. */
export function bucketRows(
  curves: readonly Curve[],
  axis: Across,
  { zoom = null, start = 0 }: { zoom?: Zoom | null; start?: number } = {},
): BucketRow[] {
  const rowsOf = (curve: Curve, buckets: Buckets, replaced: number | null) => {
    const xs = xsOf(buckets, axis, start);
    return buckets.steps.flatMap((step, at) => {
      const x = xs[at] ?? 0;
      return zoom && (x < zoom[0] || x > zoom[1]) ? [] : [rowOf(curve, buckets, replaced, step, at)];
    });
  };
  const rows = curves.flatMap((curve) => [
    ...rowsOf(curve, curve, null),
    ...curve.replaced.flatMap((one) => rowsOf(curve, one, one.generation)),
  ]);
  return rows.sort((a, b) => b.step - a.step || a.rank - b.rank || newest(b) - newest(a));
}

function newest({ replaced }: BucketRow): number {
  return replaced ?? Infinity;
}

function rowOf(
  { role, rank }: Curve,
  curve: Buckets,
  replaced: number | null,
  step: number,
  at: number,
): BucketRow {
  return {
    key: `${role} ${rank} ${step}${replaced === null ? "" : ` ${replaced}`}`,
    rank,
    replaced,
    first: curve.first_steps[at] ?? step,
    step,
    time: curve.times[at] ?? 0,
    last: curve.last[at] ?? null,
    min: curve.min[at] ?? null,
    max: curve.max[at] ?? null,
    count: curve.counts[at] ?? 0,
    nans: curve.nans[at] ?? 0,
  };
}
