/** What a page has, and what came: the next value. Pure; what did not change keeps its identity. */

import type { Curve, Deltas, Heat, HeatCell, HeatLine, Points, Topic, Values } from "./wire";

type Merge<T extends Topic> = (value: Values[T], delta: Deltas[T]) => Values[T];

const MOST_LINES = 20_000; // of a log
const MOST_ENTRIES = 2000; // of a timeline; a page that is open for weeks does not grow

const MERGES: { [T in Topic]: Merge<T> } = {
  jobs: (value, delta) => {
    const gone = new Set(delta.gone ?? []);
    const items = putById(value.items, delta.items).filter((job) => !gone.has(job.id));
    return { items: items.sort(newestFirst) };
  },
  job: (value, delta) => ({ ...value, ...delta }),
  series: (value, delta) => ({ series: appended(value.series, delta.points) }),
  heat: (value, delta) => heated(value, delta.cells),
  timeline: (value, delta) => {
    const known = new Set(value.items.map((entry) => entry.key));
    const fresh = delta.items.filter((entry) => !known.has(entry.key));
    if (!fresh.length) return value;
    const items = [...value.items, ...fresh];
    const old = items.slice(0, -MOST_ENTRIES).filter(({ is_failure }) => is_failure);
    return { items: [...old, ...items.slice(-MOST_ENTRIES)] };
  },
  commands: (value, delta) => ({ items: putById(value.items, delta.items) }),
  checks: (value, delta) => ({ items: putById(value.items, delta.items) }),
  logs: (value, delta) => {
    if (!delta.items.length) return value;
    const items = [...value.items, ...delta.items];
    return { items: items.slice(-MOST_LINES), older: value.older || items.length > MOST_LINES };
  },
  cluster: (value, delta) => ({
    nodes: changed(value.nodes, delta.nodes),
    devices: changed(value.devices, delta.devices),
    ranks: changed(value.ranks, delta.ranks),
    jobs: changed(value.jobs, delta.jobs),
    queue: delta.queue ?? value.queue,
  }),
};

/** Return a topic's value after a delta. */
export function merged<T extends Topic>(topic: T, value: Values[T], delta: Deltas[T]): Values[T] {
  return MERGES[topic](value, delta);
}

/** Return curves with new points behind their ends, each a bucket of its own. */
export function appended(series: readonly Curve[], points: readonly Points[]): Curve[] {
  const found = new Map(series.map((curve) => [keyOf(curve), curve]));
  for (const more of points) {
    const key = keyOf(more);
    found.set(key, extended(found.get(key) ?? empty(more), more));
  }
  return [...found.values()];
}

function extended(curve: Curve, points: Points): Curve {
  const end = curve.steps.at(-1) ?? -Infinity;
  const from = points.steps.findIndex((step) => step > end);
  if (from < 0) return curve;
  const steps = points.steps.slice(from);
  const values = points.values.slice(from);
  return {
    ...curve,
    steps: [...curve.steps, ...steps],
    first_steps: [...curve.first_steps, ...steps],
    times: [...curve.times, ...points.times.slice(from)],
    min: [...curve.min, ...values],
    max: [...curve.max, ...values],
    last: [...curve.last, ...values],
    counts: [...curve.counts, ...steps.map(() => 1)],
    nans: [...curve.nans, ...values.map((value) => (value === null ? 1 : 0))],
  };
}

function empty({ name, rank, role }: Points): Curve {
  const none = () => [];
  return {
    ...{ name, rank, role, steps: none(), first_steps: none(), times: none() },
    ...{ min: none(), max: none(), last: none(), counts: none(), nans: none() },
    ...{ has_replaced: false, replaced: [] },
  };
}

function keyOf(one: { name: string; rank: number; role: string }): string {
  return `${one.role}\n${one.rank}\n${one.name}`;
}

function putById<T extends { id: string }>(old: readonly T[], news: readonly T[]): T[] {
  const found = new Map(old.map((one) => [one.id, one]));
  for (const one of news) found.set(one.id, one);
  return [...found.values()];
}

function changed<T extends { id: string }>(old: T[], change: { items: T[]; gone?: string[] } | undefined): T[] {
  if (!change) return old;
  const gone = new Set(change.gone);
  return putById(old, change.items).filter(({ id }) => !gone.has(id));
}

function newestFirst(a: { id: string; created_at: string | null }, b: typeof a): number {
  return (b.created_at ?? "").localeCompare(a.created_at ?? "") || b.id.localeCompare(a.id);
}

/** Return lines with new cells; all lines move when a cell lies behind their end. */
export function heated(heat: Heat, cells: readonly HeatCell[]): Heat {
  const newest = cells.reduce((end, [, , slot]) => Math.max(end, slot), heat.start + heat.columns - 1);
  const moved = movedTo(heat, newest - heat.columns + 1);
  const lines = new Map(moved.lines.map((line) => [lineKey(line.rank, line.role), line]));
  const fresh = new Set<string>();
  for (const [rank, role, slot, value] of cells) {
    const at = slot - moved.start;
    if (at < 0) continue;
    const key = lineKey(rank, role);
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

function lineKey(rank: number, role: string): string {
  return `${rank} ${role}`;
}

function byRank(a: HeatLine, b: HeatLine): number {
  return a.rank - b.rank || a.role.localeCompare(b.role);
}
