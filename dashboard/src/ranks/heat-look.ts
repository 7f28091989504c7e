/** What lines of cells look like: which part is shown, how warm a cell is, where it stands. Pure. */

import type { Heat } from "../api/wire";

export const SHADES = 32;
const FEWEST = 20; // columns; a job that has just begun does not fill the page with a few
const HELD = 3; // multiples of a step, or of a cell: the longest gap between two reports of a rank
const LOW = 0.05; // of all values are colder than the coldest colour
const HIGH = 0.99;

export interface Shown {
  /** The number of the first column's stretch of time. */
  start: number;
  lines: { rank: number; role: string; values: (number | null)[] }[];
}

export interface Scale {
  low: number;
  high: number;
}

export interface Place {
  line: number;
  column: number;
}

/** Return the columns since the first word of any rank, with the gaps of slow steps closed. */
export function shownOf({ start, columns, width, lines }: Heat): Shown {
  const firsts = lines.map(({ values }) => values.findIndex((value) => value !== null)).filter((at) => at >= 0);
  const from = Math.min(columns - FEWEST, firsts.reduce((least, at) => Math.min(least, at), columns));
  const cut = Math.max(0, from);
  return {
    start: start + cut,
    lines: lines.map((line) => ({ ...line, values: closed(line.values.slice(cut), width) })),
  };
}

/** Return values where a gap between two has the later one: a rank reports the steps before its report. */
export function closed(values: readonly (number | null)[], width: number): (number | null)[] {
  const found = [...values];
  let last = -1;
  found.forEach((value, at) => {
    if (value === null) return;
    const gap = (at - last) * width;
    if (last >= 0 && gap > width && gap <= Math.max(HELD * width, HELD * value)) found.fill(value, last + 1, at);
    last = at;
  });
  return found;
}

/** Return what the coldest and the warmest colour mean: equal ranks stay cold, one peak hides no other. */
export function scaleOf({ lines }: Shown): Scale {
  const sorted = lines.flatMap(({ values }) => values.filter((value) => value !== null)).sort((a, b) => a - b);
  const at = (part: number) => sorted[Math.floor(part * (sorted.length - 1))] ?? 0;
  const low = at(LOW);
  return { low, high: Math.max(at(HIGH), 2 * at(0.5), low + Number.EPSILON) };
}

/** Return the shade of a value, from 0 to one less than there are. */
export function shadeOf(value: number, { low, high }: Scale): number {
  const part = (value - low) / (high - low);
  return Math.round(Math.min(1, Math.max(0, part)) * (SHADES - 1));
}

/** Return how high a line is, so that few ranks are easily seen and a thousand fit. */
export function heightOf(lines: number): number {
  return Math.max(3, Math.min(18, Math.floor(420 / Math.max(1, lines))));
}

/** Return the cell at a place of the picture; null beside it. */
export function cellAt(x: number, y: number, width: number, { lines }: Shown): Place | null {
  const columns = lines[0]?.values.length ?? 0;
  const place = { line: Math.floor(y / heightOf(lines.length)), column: Math.floor((x / width) * columns) };
  const isInside = x >= 0 && y >= 0 && place.line < lines.length && place.column < columns;
  return isInside ? place : null;
}

/** Return at most so many stretches of columns, from and to; none is empty and together they are all. */
export function stretches(columns: number, most: number): [from: number, to: number][] {
  const count = Math.min(columns, most);
  const edge = (at: number) => Math.round((at / count) * columns);
  return Array.from({ length: count }, (_, at) => [edge(at), edge(at + 1)]);
}
