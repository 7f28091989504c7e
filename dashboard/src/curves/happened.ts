/** What happened to a job as lines to read: a save is one of them, and no failure is cut off. Pure. */

import type { Entry } from "../api/wire";
import { span, whole } from "../ui/text/format";

const OF_A_SAVE = ["checkpoint_wanted", "checkpoint_shard", "checkpoint_committed", "checkpoint_removed"];
const [SHARD, COMMITTED, REMOVED] = OF_A_SAVE.slice(1);
type Parts = [Entry, ...Entry[]]; // of one save
const PLANE = "loom"; // as an author
const TOGETHER = 600; // seconds in which all that belongs to a save has come

/** Whether an entry is a rank's report on a command that has an entry of its own. */
export function isEcho({ what }: Entry): boolean {
  return /^(ready|decided|applied)$/.test(what);
}

/** Return entries without echoes, with all entries of one save joined to one. */
export function withSaves(entries: readonly Entry[]): Entry[] {
  const saves = new Map<number, Parts>();
  const lines: (Entry | Parts)[] = [];
  let last: Parts | undefined;
  for (const entry of entries.filter((one) => !isEcho(one))) {
    const step = savedStep(entry);
    if (step === null || !OF_A_SAVE.includes(entry.what) || entry.is_failure || isByHand(entry)) {
      lines.push(entry);
      continue;
    }
    const known = entry.what === REMOVED ? last : saves.get(step);
    if (known && isNear(known[0], entry)) known.push(entry);
    else {
      const parts: Parts = [entry];
      lines.push(parts);
      if (entry.what !== REMOVED) saves.set(step, parts);
    }
    if (entry.what === COMMITTED) last = saves.get(step);
  }
  return lines.map((line) => (Array.isArray(line) ? joined(line) : line));
}

/** Return the newest lines, the newest first; failures before them are there, too. */
export function shownOf(lines: readonly Entry[], most: number): Entry[] {
  const cut = Math.max(0, lines.length - most);
  return [...lines.slice(0, cut).filter(({ is_failure }) => is_failure), ...lines.slice(cut)].reverse();
}

/** What a person removed is no part of a save; the plane itself removes what is not kept. */
function isByHand({ what, author }: Entry): boolean {
  return what === REMOVED && author !== "" && author !== PLANE;
}

function isNear(first: Entry, entry: Entry): boolean {
  return Date.parse(entry.time) - Date.parse(first.time) <= TOGETHER * 1000;
}

function savedStep({ facts, step }: Entry): number | null {
  return typeof facts.step === "number" ? facts.step : step;
}

/** Return all entries of one save as one entry, in the place of the first. */
function joined(parts: Parts): Entry {
  const [first] = parts;
  if (parts.length === 1 && first.what === REMOVED) return first;
  const done = parts.find(({ what }) => what === COMMITTED);
  const main = done ?? first;
  const step = savedStep(main);
  const shards = parts.filter(({ what }) => what === SHARD).length;
  const gone = parts.filter(({ what }) => what === REMOVED).map((one) => whole(savedStep(one)));
  const seconds = main.facts.seconds;
  const more = [
    ...(done ? [] : [shards ? `${shards} written so far` : "requested"]),
    ...(typeof seconds === "number" ? [`took ${span(seconds)}`] : []),
    ...(gone.length ? [`removed that of step ${gone.join(", ")}`] : []),
  ];
  const title = done ? "checkpoint saved" : "checkpoint";
  return { ...main, step, key: first.key, time: first.time, author: "", reason: "", title: [title, ...more].join(", "), rank: null };
}
