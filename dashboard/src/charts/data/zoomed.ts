/** A curve that is finer where one looks: the whole, and in its midst what was asked for of a range. Pure. */

import type { Buckets, Curve, Replaced } from "../../api/wire";
import { type Across, xsOf } from "./columns";
import type { Zoom } from "./words";

/** Steps, both ends in; without a last one it grows with the job. */
export interface Range {
  first: number;
  last?: number;
}

const LARGEST = 2 ** 53 - 1;

/** Return the steps of a zoom where the curves are thinned there; null where all points are at hand. */
export function rangeOf(curves: readonly Curve[], axis: Across, zoom: Zoom | null, start = 0): Range | null {
  if (!zoom) return null;
  const found = axis === "step" ? stepsOf(zoom) : stepsAt(curves, axis, zoom, start);
  const isSome = (one: Buckets) => found !== null && isThinned(one, found);
  return curves.some((curve) => isSome(curve) || curve.replaced.some(isSome)) ? found : null;
}

/** Return curves with what is known more finely in place of their buckets from a step to another. */
export function spliced(whole: readonly Curve[], fine: readonly Curve[], range: Range): Curve[] {
  const known = new Map(fine.map((curve) => [keyOf(curve), curve]));
  return whole.map((curve) => {
    const middle = known.get(keyOf(curve));
    if (!middle?.steps.length) return curve;
    return { ...joined(curve, middle, range), replaced: splicedReplaced(curve.replaced, middle.replaced, range) };
  });
}

function splicedReplaced(whole: readonly Replaced[], fine: readonly Replaced[], range: Range): Replaced[] {
  const known = new Map(fine.map((one) => [one.generation, one]));
  return whole.map((one) => {
    const middle = known.get(one.generation);
    return middle ? joined(one, middle, range) : one;
  });
}

/** Return buckets with others in place of those from a step to another. */
function joined<T extends Buckets>(whole: T, middle: Buckets, { first, last = Infinity }: Range): T {
  const before = whole.steps.filter((step) => step < first).length;
  const after = whole.first_steps.filter((step) => step <= last).length;
  const join = <V>(get: (one: Buckets) => readonly V[]): V[] => [
    ...get(whole).slice(0, before),
    ...get(middle),
    ...get(whole).slice(after),
  ];
  return {
    ...whole,
    steps: join((one) => one.steps),
    first_steps: join((one) => one.first_steps),
    times: join((one) => one.times),
    min: join((one) => one.min),
    max: join((one) => one.max),
    last: join((one) => one.last),
    counts: join((one) => one.counts),
    nans: join((one) => one.nans),
  };
}

/** Return how many buckets a range is asked in: one a pixel, in hundreds, so that little resizing asks anew. */
export function bucketsOf(pixels: number): number {
  return Math.min(5000, Math.max(300, Math.ceil(pixels / 100) * 100));
}

function stepsOf([from, to]: Zoom): Range {
  return { first: within(Math.floor(from)), last: within(Math.ceil(to)) };
}

/** A bucket has the time of its last step; so it begins where the one before it ends. */
function stepsAt(curves: readonly Curve[], axis: Across, [from, to]: Zoom, start: number): Range | null {
  const firsts: number[] = [];
  const lasts: number[] = [];
  for (const curve of curves) {
    const ends = xsOf(curve, axis, start);
    ends.forEach((end, at) => {
      if (end < from || (ends[at - 1] ?? -Infinity) > to) return;
      firsts.push(curve.first_steps[at] ?? 0);
      lasts.push(curve.steps[at] ?? 0);
    });
    if ((ends.at(-1) ?? Infinity) < to) lasts.push(Infinity);
  }
  if (!firsts.length) return null;
  const [first, last] = [least(firsts), -least(lasts.map((step) => -step))];
  return last === Infinity ? { first } : { first, last };
}

function isThinned({ first_steps: firsts, steps, counts }: Buckets, { first, last = Infinity }: Range): boolean {
  return steps.some((end, at) => end >= first && (firsts[at] ?? end) <= last && (counts[at] ?? 1) > 1);
}

function within(step: number): number {
  return Math.min(LARGEST, Math.max(-LARGEST, step));
}

function least(values: readonly number[]): number {
  return values.reduce((best, one) => Math.min(best, one), Infinity);
}

function keyOf({ role, rank, name }: Curve): string {
  return `${role}\n${rank}\n${name}`;
}
