/** What changed before something happened, what matters most first. Pure. */

import type { Entry, EntryKind } from "../api/wire";
import { isEcho } from "./happened";

/** How often a change of a kind is why a curve jumps; the nearer, the more it counts. */
const WEIGHTS: Record<EntryKind, number> = {
  knob: 1,
  recovery: 0.9,
  restart: 0.9,
  rank: 0.6,
  node: 0.6,
  alert: 0.5,
  command: 0.4,
  state: 0.3,
  checkpoint: 0.25,
  event: 0.2,
};
const HARMLESS = 0.1; // a pause changes no number: the next step is what it would have been
const PAUSES = /^(pause|resume|PAUSED|RUNNING)\b/;
const RESTORED = 0.9; // going on from a checkpoint is no mere saving of one
const WITHOUT_EFFECT = /refused|aborted|failed|expired/; // what never took effect can hardly be why
const TAKEN_BACK = 0.3; // who takes a change back has seen the jump already
const HALF_STEPS = 50; // so many steps before, a change counts half
const HALF_SECONDS = 60;
const LEAST = 0.01; // less than this is too long ago to be worth a line
const MOST = 8;
const MOST_TENFOLD = 4; // a factor of more than 10,000 counts as that

export interface Moment {
  step: number;
  time: number;
}

export interface Cause {
  entry: Entry;
  /** How long before, in steps where the entry has one. */
  steps: number | null;
  seconds: number;
  score: number;
}

/** Return what happened up to a moment, the likeliest cause first. */
export function causesOf(entries: readonly Entry[], moment: Moment): Cause[] {
  const found = entries.flatMap((entry) => {
    const seconds = moment.time - Date.parse(entry.time) / 1000;
    const steps = entry.step === null ? null : moment.step - entry.step;
    const isBefore = steps === null ? seconds >= 0 : steps >= 0;
    if (!isBefore || isEcho(entry)) return [];
    const share = entries.some((other) => isTakenBack(other, entry)) ? TAKEN_BACK : 1;
    return [{ entry, steps, seconds, score: share * scoreOf(entry, steps, seconds) }];
  });
  return found
    .filter(({ score }) => score >= LEAST)
    .sort((a, b) => b.score - a.score || a.seconds - b.seconds)
    .slice(0, MOST);
}

function scoreOf(entry: Entry, steps: number | null, seconds: number): number {
  const away = steps === null ? seconds / HALF_SECONDS : steps / HALF_STEPS;
  return (weightOf(entry) * strengthOf(entry)) / (1 + Math.max(0, away));
}

/** Whether a knob got its value back by an entry. */
function isTakenBack(change: Entry, back: Entry): boolean {
  const isOfOneKnob = change.kind === "knob" && back.kind === "knob" && nameOf(change) === nameOf(back);
  const isInverse = change.before !== change.after && change.before === back.after && change.after === back.before;
  return isOfOneKnob && isInverse && Date.parse(change.time) < Date.parse(back.time);
}

/** The knob of a change, which its title begins with. */
function nameOf({ title }: Entry): string {
  return title.split(" ")[0] ?? "";
}

function weightOf(entry: Entry): number {
  if (entry.kind === "checkpoint" && entry.what.includes("restored")) return RESTORED;
  if ((entry.kind === "command" || entry.kind === "state") && PAUSES.test(entry.title)) return HARMLESS;
  return WITHOUT_EFFECT.test(entry.what) && entry.kind !== "checkpoint" ? 0.05 : WEIGHTS[entry.kind];
}

/** A change by a factor of ten counts twice, by a hundred three times, one by nothing half. */
function strengthOf({ kind, before, after }: Entry): number {
  if (kind !== "knob") return 1;
  if (!isObject(before) || !isObject(after)) return changeOf(before, after);
  return Math.max(0.5, ...Object.keys(after).map((name) => changeOf(before[name], after[name]))); // several knobs at once
}

function changeOf(before: unknown, after: unknown): number {
  if (typeof before !== "number" || typeof after !== "number") return 1;
  if (before === after) return 0.5;
  if (before <= 0 || after <= 0) return 2;
  return 1 + Math.min(MOST_TENFOLD, Math.abs(Math.log10(after / before)));
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
