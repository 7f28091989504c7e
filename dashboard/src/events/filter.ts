/** Which events are shown, by the address. Pure. */

import type { Entry, EntryKind } from "../api/wire";

export const KINDS: readonly EntryKind[] = [
  ...(["state", "knob", "command", "checkpoint", "recovery", "restart", "rank", "node", "alert", "event"] as const),
];

export interface Filter {
  kind: string;
  words: string;
  /** Only what people did: the audit. */
  byPeople: boolean;
}

/** Return what fits, the newest first. */
export function fitting(entries: readonly Entry[], { kind, words, byPeople }: Filter): Entry[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return entries
    .filter((entry) => (!kind || entry.kind === kind) && (!byPeople || entry.author !== ""))
    .filter((entry) => wanted.every((word) => textOf(entry).includes(word)))
    .reverse();
}

/** Return how many there are of each kind that occurs. */
export function counted(entries: readonly Entry[]): [EntryKind, number][] {
  return KINDS.map((kind): [EntryKind, number] => [
    kind,
    entries.filter((entry) => entry.kind === kind).length,
  ]).filter(([, count]) => count > 0);
}

function textOf({ title, what, author, reason, rank, step }: Entry): string {
  const numbers = [rank === null ? "" : `rank ${rank}`, step === null ? "" : `step ${step}`];
  return [title, what, author, reason, ...numbers].join(" ").toLowerCase();
}
