/** Lines of cells over time, a line a rank: what a page has, and what came. Pure. */

export interface HeatLine {
  rank: number;
  role: string;
  /** One for each column; null where nothing was told. */
  values: (number | null)[];
}

export interface Heat {
  name: string;
  columns: number;
  /** Seconds that a cell lasts. */
  width: number;
  /** The number of the first column's stretch of time: it begins `start * width` seconds after 1970. */
  start: number;
  /** Ranks that have no line, because there are so many. */
  left_out: number;
  lines: HeatLine[];
}

export type HeatCell = [rank: number, role: string, slot: number, value: number];

/** Return lines with new cells; all move on together when one is behind their end. */
export function heated(heat: Heat, cells: readonly HeatCell[]): Heat {
  const newest = cells.reduce((end, [, , slot]) => Math.max(end, slot), heat.start + heat.columns - 1);
  const moved = movedTo(heat, newest - heat.columns + 1);
  const lines = new Map(moved.lines.map((line) => [keyOf(line.rank, line.role), line]));
  const fresh = new Set<string>();
  for (const [rank, role, slot, value] of cells) {
    const at = slot - moved.start;
    if (at < 0) continue;
    const key = keyOf(rank, role);
    const line = lines.get(key) ?? { rank, role, values: nothing(heat.columns) };
    const values = fresh.has(key) ? line.values : [...line.values];
    values[at] = Math.max(value, values[at] ?? -Infinity);
    fresh.add(key);
    lines.set(key, { ...line, values });
  }
  return { ...moved, lines: [...lines.values()].sort(byRank) };
}

function movedTo(heat: Heat, start: number): Heat {
  const gone = start - heat.start;
  if (gone <= 0) return heat;
  const empty = nothing(Math.min(gone, heat.columns));
  const lines = heat.lines.map((line) => ({ ...line, values: [...line.values.slice(gone), ...empty] }));
  return { ...heat, start, lines };
}

function nothing(count: number): null[] {
  return new Array<null>(count).fill(null);
}

function keyOf(rank: number, role: string): string {
  return `${rank} ${role}`;
}

function byRank(a: HeatLine, b: HeatLine): number {
  return a.rank - b.rank || a.role.localeCompare(b.role);
}
