/** Curves as the chart draws them: shared x, and for each curve what is to be seen of it. Pure. */

import type { Curve } from "../../api/wire";

export type Axis = "step" | "time";
/** Beside steps and times of day: seconds since a beginning. */
export type Across = Axis | "relative";
export type Column = (number | null)[];

export interface Drawn {
  xs: number[];
  /** One for each line: the last value of each bucket, smoothed where the user chose that. */
  lines: Column[];
  /** What a smoothed line was before; only of a curve that is alone. */
  raw: Column | null;
  /** The least and greatest of each bucket; only of a curve that is alone. */
  band: [low: Column, high: Column] | null;
}

/** Return what is drawn. One curve has its band; of several there are the lines alone, through every peak. */
export function drawn(curves: readonly Curve[], axis: Across, smoothing: number, start = 0): Drawn {
  const [only] = curves;
  if (!only) return { xs: [], lines: [], raw: null, band: null };
  if (curves.length === 1) {
    const line = smoothed(only.last, smoothing);
    const raw = smoothing > 0 ? only.last : null;
    return { xs: xsOf(only, axis, start), lines: [line], raw, band: [only.min, only.max] };
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
  return { xs, lines, raw: null, band: null };
}

/** Return a curve whose buckets are their extremes, then their last: a line without a band hides no peak. */
export function unfolded(curve: Curve): Curve {
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
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}

/** Return the steps, the times in seconds, or the seconds since a start, of a curve's buckets. */
export function xsOf(curve: Curve, axis: Across, start = 0): number[] {
  if (axis === "step") return curve.steps;
  return axis === "time" ? curve.times : curve.times.map((time) => time - start);
}

function spread(curve: Curve, own: number[], xs: number[], smoothing: number): Column {
  const line = smoothed(curve.last, smoothing);
  const at = new Map(own.map((x, index) => [x, line[index] ?? null]));
  return xs.map((x) => at.get(x) ?? null);
}
