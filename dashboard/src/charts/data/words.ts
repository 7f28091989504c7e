/** The view of all charts as words of the address, and back. Pure. */

import type { Across } from "./columns";

export type Zoom = readonly [from: number, to: number];

export const SHOWN = "1"; // what a switch that is on is in the address

/** Return the names in a word; a comma that is part of a name is written %2C. */
export function listed(word: string): string[] {
  return word.split(",").filter(Boolean).map(plain);
}

/** Return the word with a name added at its end, or taken out where it was in. */
export function toggled(word: string, name: string): string {
  const names = listed(word);
  const next = names.includes(name) ? names.filter((one) => one !== name) : [...names, name];
  return worded(next);
}

/** Return names as one word. */
export function worded(names: readonly string[]): string {
  return names.map((one) => one.replaceAll("%", "%25").replaceAll(",", "%2C")).join(",");
}

/** Return the range that a word means, or none. */
export function zoomOf(word: string): Zoom | null {
  const [from = NaN, to = NaN] = word.split("..").map(Number);
  return word.includes("..") && Number.isFinite(from) && Number.isFinite(to) && from < to ? [from, to] : null;
}

/** Return a range as a word; no more digits than a pointer can mean. */
export function zoomWord(zoom: Zoom | null): string {
  if (!zoom) return "";
  const digits = Math.max(0, Math.ceil(3 - Math.log10(zoom[1] - zoom[0])));
  return zoom.map((end) => String(Number(end.toFixed(Math.min(12, digits))))).join("..");
}

export function acrossOf(word: string): Across {
  return word === "time" || word === "relative" ? word : "step";
}

function plain(name: string): string {
  return name.replaceAll("%2C", ",").replaceAll("%25", "%");
}

/** Return which bucket is nearest to a place; -1 where there is none. */
export function nearest(at: number, xs: readonly number[]): number {
  if (at === Infinity) return xs.length - 1;
  let best = -1;
  xs.forEach((x, index) => {
    if (best < 0 || Math.abs(x - at) < Math.abs((xs[best] ?? 0) - at)) best = index;
  });
  return best;
}
