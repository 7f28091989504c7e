/** Curves as the chart draws them: shared x, and for each curve what is to be seen of it. Pure. */

import type { Buckets, Curve, Replaced } from "../../api/wire";

export type Axis = "step" | "time";
/** Beside steps and times of day: seconds since a beginning. */
export type Across = Axis | "relative";
/** No number is a gap; `undefined` is none: another line has a place there. */
export type Column = (number | null | undefined)[];

export interface Drawn {
  xs: number[];
  /** One for each line: the last value of each bucket, smoothed where the user chose that. */
  lines: Column[];
  /** What a smoothed line was before; only of a curve that is alone. */
  raw: Column | null;
  /** The least and greatest of each bucket; only of a curve that is alone. */
  band: [low: Column, high: Column] | null;
  /** What later generations have replaced: lines, each with the number of the line that it belongs to. */
  replaced: { of: number; line: Column }[];
}

/** Return whether a later generation has repeated steps of one of these curves. */
export function hasReplaced(curves: readonly Curve[] | undefined): boolean {
  return curves?.some((curve) => curve.has_replaced) ?? false;
}

/** Return what the last generation before reported of a step; null where it was not repeated. */
export function replacedAt(
  replaced: readonly Replaced[],
  step: number,
): { generation: number; last: number | null } | null {
  for (const one of [...replaced].reverse()) {
    const at = one.steps.findIndex((end, bucket) => step <= end && step >= (one.first_steps[bucket] ?? end));
    if (at >= 0) return { generation: one.generation, last: one.last[at] ?? null };
  }
  return null;
}

/** Return what is drawn: curves, and what they have replaced. */
export function drawn(curves: readonly Curve[], axis: Across, smoothing: number, start = 0): Drawn {
  const found = drawnAlone(curves, axis, smoothing, start);
  const older = curves.flatMap((curve, of) =>
    curve.replaced.map((one) => {
      const whole = smoothing > 0 ? one : unfolded(one);
      return { of, xs: xsOf(whole, axis, start), line: smoothed(whole.last, smoothing) };
    }),
  );
  if (!older.length) return found;
  const xs = [...new Set([found.xs, ...older.map((one) => one.xs)].flat())].sort((a, b) => a - b);
  const placed = (column: Column) => placedAt(found.xs, column, xs);
  return {
    xs,
    lines: found.lines.map(placed),
    raw: found.raw && placed(found.raw),
    band: found.band && [placed(found.band[0]), placed(found.band[1])],
    replaced: older.map((one) => ({ of: one.of, line: placedAt(one.xs, one.line, xs) })),
  };
}

/** One curve has its band; of several there are the lines alone, through every peak. */
function drawnAlone(curves: readonly Curve[], axis: Across, smoothing: number, start = 0): Drawn {
  const [only] = curves;
  if (!only) return { xs: [], lines: [], raw: null, band: null, replaced: [] };
  if (curves.length === 1) {
    const line = smoothed(only.last, smoothing);
    const raw = smoothing > 0 ? only.last : null;
    return { xs: xsOf(only, axis, start), lines: [line], raw, band: [only.min, only.max], replaced: [] };
  }
  return overlaid(curves, axis, smoothing, curves.map(() => start));
}

/** Return several curves over one axis, each with a start of its own; one that is not there has a line, too. */
export function overlaid(
  curves: readonly (Curve | undefined)[],
  axis: Across,
  smoothing: number,
  starts: readonly number[],
): Drawn {
  const whole = smoothing > 0 ? curves : curves.map((curve) => curve && unfolded(curve));
  const own = whole.map((curve, at) => (curve ? xsOf(curve, axis, starts[at]) : []));
  const xs = [...new Set(own.flat())].sort((a, b) => a - b);
  const lines = whole.map((curve, at) => (curve ? spread(curve, own[at] ?? [], xs, smoothing) : xs.map(() => null)));
  return { xs, lines, raw: null, band: null, replaced: [] };
}

/** Return a curve whose buckets are their extremes, then their last: a line without a band hides no peak. */
export function unfolded<T extends Buckets>(curve: T): T {
  if (curve.counts.every((count) => count === 1)) return curve;
  const [steps, times, last]: [number[], number[], Column] = [[], [], []];
  curve.steps.forEach((step, at) => {
    const [time = 0, value = null] = [curve.times[at], curve.last[at]];
    const [begin, before] = [curve.first_steps[at] ?? step, curve.times[at - 1] ?? time];
    const extremes = [...new Set([curve.max[at], curve.min[at]])].filter((one) => one != null && one !== value);
    extremes.forEach((one, nth) => {
      steps.push(begin + ((step - begin) * nth) / extremes.length);
      times.push(before + ((time - before) * (nth + 1)) / (extremes.length + 1));
      last.push(one ?? null);
    });
    steps.push(step);
    times.push(time);
    last.push(value);
  });
  return { ...curve, steps, times, last };
}

/** Return an exponential mean that is right from the first value on; gaps stay gaps. */
export function smoothed(values: Column, weight: number): Column {
  if (weight <= 0) return values;
  let [sum, norm] = [0, 0];
  return values.map((value) => {
    if (value == null) return value;
    sum = weight * sum + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}

/** Return the steps, the times in seconds, or the seconds since a start, of a curve's buckets. */
export function xsOf(curve: Buckets, axis: Across, start = 0): number[] {
  if (axis === "step") return curve.steps;
  return axis === "time" ? curve.times : curve.times.map((time) => time - start);
}

/** Return a column over more places than it has; where it has none there is no gap. */
function placedAt(own: readonly number[], column: Column, xs: readonly number[]): Column {
  const at = new Map(own.map((x, index) => [x, column[index]]));
  return xs.map((x) => at.get(x));
}

function spread(curve: Curve, own: number[], xs: number[], smoothing: number): Column {
  const line = smoothed(curve.last, smoothing);
  const at = new Map(own.map((x, index) => [x, line[index] ?? null]));
  return xs.map((x) => at.get(x) ?? null);
}
