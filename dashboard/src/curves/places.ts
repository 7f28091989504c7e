/** Where something that happened stands on a curve's axis. Pure. */

import type { Curve, Entry } from "../api/wire";
import type { Axis } from "../charts/data/columns";

/** Return where an entry is drawn: at its step, or at the step that was done at its time. */
export function placeOf(entry: Entry, axis: Axis, curve: Curve | undefined): number | null {
  const time = Date.parse(entry.time) / 1000;
  if (axis === "time") return time;
  return entry.step ?? (curve ? between(time, curve.times, curve.steps) : null);
}

/** Return a value of `to` where `from` has `at`, on the line between neighbours; ends hold. */
export function between(at: number, from: readonly number[], to: readonly number[]): number | null {
  if (!from.length) return null;
  const right = from.findIndex((value) => value >= at);
  if (right === 0) return to[0] ?? null;
  if (right < 0) return to.at(-1) ?? null;
  const [x0 = 0, x1 = 0] = [from[right - 1], from[right]];
  const [y0 = 0, y1 = 0] = [to[right - 1], to[right]];
  return x1 > x0 ? y0 + ((y1 - y0) * (at - x0)) / (x1 - x0) : y1;
}

/**
 * Return the bucket around another that stands out most from the whole curve: who clicks beside a
 * spike means it, and not a dip within it.
 */
export function peakNear(curve: Curve, index: number, radius: number): number {
  const from = Math.max(0, index - radius);
  const window = curve.max.slice(from, index + radius + 1);
  const known = curve.max.filter((value) => value !== null).sort((a, b) => a - b);
  const middle = known[Math.floor(known.length / 2)];
  if (middle === undefined) return index;
  const lows = curve.min.slice(from, index + radius + 1);
  const far = window.map((high, at) => {
    if (curve.nans[from + at]) return Infinity;
    return Math.max(Math.abs((high ?? middle) - middle), Math.abs((lows[at] ?? middle) - middle));
  });
  const most = Math.max(...far);
  return most > 0 ? from + far.indexOf(most) : index;
}
