/** Which columns the table of runs has, what is in them, and how the address encodes them. Pure.
 *
 * A column is named as the server sorts by it: `owner`, `config:lr`, `last:loss`.
 */

import type { ListedRun } from "../api/use-experiments";
import { listed } from "../charts/data/words";
import { age, NOTHING, number, shown, span, whole } from "../ui/text/format";

export const PLAIN: Readonly<Record<string, string>> = {
  state: "State",
  owner: "Owner",
  project: "Project",
  group: "Group",
  tags: "Tags",
  step: "Step",
  duration: "Duration",
  world_size: "Workers",
  attempt: "Attempt",
  commit: "Commit",
  branch: "Branch",
  created_at: "Age",
};
export const WHICH = ["last", "min", "max", "best"] as const;
export const CONFIG = "config";
const [MOST_CONFIG, MOST_METRICS] = [4, 2]; // columns that are shown without a choice
const FEW = 7; // letters of a commit
const WIDTHS: Readonly<Record<string, number>> = { state: 116, tags: 120, project: 110, created_at: 64 };
const WIDTH = 88;

export interface Known {
  config: string[];
  metrics: string[];
}

/** Return every value of nested ones under its dotted name; lists are values. */
export function flat(values: Readonly<Record<string, unknown>>, prefix = ""): [string, unknown][] {
  return Object.entries(values).flatMap(([key, value]): [string, unknown][] => {
    const isNested = typeof value === "object" && value !== null && !Array.isArray(value) && Object.keys(value).length;
    return isNested ? flat(value as Record<string, unknown>, `${prefix}${key}.`) : [[prefix + key, value]];
  });
}

/** Return what there is to choose from. */
export function known(runs: readonly ListedRun[]): Known {
  const config = new Set(runs.flatMap((run) => flat(run.config).map(([name]) => name)));
  const metrics = new Set(runs.flatMap((run) => Object.keys(run.metrics)));
  return { config: [...config].sort(), metrics: [...metrics].sort() };
}

/** Return the columns that the address names; by default the settings that differ and the results. */
export function columnsOf(word: string, runs: readonly ListedRun[]): string[] {
  return word ? listed(word) : chosen(runs);
}

/** Return how a column is called. */
export function titleOf(column: string): string {
  const [kind, name] = parts(column);
  if (!kind) return PLAIN[name] ?? name;
  return kind === CONFIG || kind === "last" ? name : `${name}, ${kind}`;
}

export function isSortable(column: string): boolean {
  return column !== "tags";
}

export function isNumber(column: string): boolean {
  return column.includes(":") || ["step", "duration", "world_size", "attempt", "created_at"].includes(column);
}

export function widthOf(column: string): number {
  return WIDTHS[column] ?? WIDTH;
}

/** Return what a run has in a column, in words; `now` is in milliseconds. */
export function textOf(run: ListedRun, column: string, now: number): string {
  const [kind, name] = parts(column);
  if (kind === CONFIG) {
    const found = flat(run.config).find(([key]) => key === name);
    return found ? shown(found[1]) : NOTHING;
  }
  if (kind) return measured(run.metrics[name]?.[kind as "last"]);
  switch (name) {
    case "tags":
      return run.tags.join(", ");
    case "step":
      return whole(run.step);
    case "duration":
      return span(tookOf(run, now));
    case "commit":
      return run.commit ? run.commit.slice(0, FEW) + (run.dirty ? "+" : "") : NOTHING;
    case "created_at":
      return run.created_at ? age(Math.max(0, (now - Date.parse(run.created_at)) / 1000)) : NOTHING;
    default:
      return shown((run as unknown as Record<string, unknown>)[name] ?? null) || NOTHING;
  }
}

/** Return the word for the next press on a heading: up, down, not at all. */
export function nextSort(sort: string, column: string): string {
  return sort === column ? `-${column}` : sort === `-${column}` ? "" : column;
}

/** Return a number as tables have it; one that is none is a word. */
export function measured(value: number | string | null | undefined): string {
  return typeof value === "string" ? value : number(value);
}

function tookOf({ started_at: started, ended_at: ended }: ListedRun, now: number): number | null {
  if (!started) return null;
  return Math.max(0, ((ended ? Date.parse(ended) : now) - Date.parse(started)) / 1000);
}

function chosen(runs: readonly ListedRun[]): string[] {
  const { config, metrics } = known(runs);
  const begun = runs.filter((run) => Object.keys(run.config).length); // one that waits has nothing yet
  const values = (name: string) => new Set(begun.map((run) => textOf(run, `${CONFIG}:${name}`, 0)));
  const differing = config.filter((name) => values(name).size > 1);
  const useful = runs.length > 1 ? [...new Set([...config.filter(isRate), ...differing])] : config;
  const losses = metrics.filter((name) => !name.startsWith("loom/")).sort((a, b) => weight(a) - weight(b));
  return [
    "state",
    ...[...useful].sort(ratesFirst).slice(0, MOST_CONFIG).map((name) => `${CONFIG}:${name}`),
    ...losses.slice(0, MOST_METRICS).map((name) => `last:${name}`),
    ...["tags", "owner", "duration"],
    ...(runs.some((run) => run.commit) ? ["commit"] : []),
    "created_at",
  ];
}

/** Whether a value is a learning rate, which one looks for first, also where all runs have the same. */
function isRate(name: string): boolean {
  return /(^|\.)(lr|learning_rate)$/.test(name);
}

function ratesFirst(a: string, b: string): number {
  return Number(isRate(b)) - Number(isRate(a));
}

/** A loss is what one looks for first, then what is evaluated. */
function weight(metric: string): number {
  if (/(^|[/_.])loss$/i.test(metric)) return 0;
  return /acc|eval|val/i.test(metric) ? 1 : 2;
}

function parts(column: string): [kind: string, name: string] {
  const at = column.indexOf(":");
  return at < 0 ? ["", column] : [column.slice(0, at), column.slice(at + 1)];
}
