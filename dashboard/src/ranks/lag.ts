/** Who holds the others up: how far each rank is behind, and what it takes for a step. Pure. */

import type { Rank } from "../api/wire";

const SLOW = 1.5; // times the middle step time: a rank that is slower is worth a look
const SILENT = 5; // seconds without a step, where steps are quick

export interface Standing {
  rank: Rank;
  behind: number | null;
  /** Why one should look at it; empty where all is well. */
  look: string;
}

/** Return ranks by number, each with how it stands among the others. */
export function standings(ranks: readonly Rank[]): Standing[] {
  const first = Math.max(...ranks.map(({ step }) => step ?? -Infinity));
  const middle = median(ranks.flatMap(({ step_seconds: took }) => took ?? []));
  return [...ranks]
    .sort((a, b) => a.rank - b.rank || a.role.localeCompare(b.role))
    .map((rank) => ({
      rank,
      behind: rank.step === null ? null : first - rank.step,
      look: lookOf(rank, middle),
    }));
}

function lookOf(rank: Rank, middle: number | null): string {
  if (rank.state !== "up") return rank.reason || rank.state;
  const took = rank.step_seconds ?? null;
  const silent = rank.silent_seconds ?? 0;
  if (silent > Math.max(SILENT, 5 * (middle ?? 0))) return "no step for a while";
  return middle !== null && took !== null && took > SLOW * middle ? "slower than the others" : "";
}

function median(values: readonly number[]): number | null {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor((sorted.length - 1) / 2)] ?? null;
}
