/** Which lines are requested, by the address. Pure. */

import type { Level, TopicRequest } from "../api/wire";

export const LEVELS: readonly Level[] = ["debug", "info", "warning", "error", "critical"];
const FIRST = 2000; // lines that a page begins with

/** Return ranks of a word such as `0,2`; what is no number is left out. */
export function ranksOf(word: string): number[] {
  const numbers = word.split(",").filter((part) => /^\d{1,9}$/.test(part));
  return [...new Set(numbers.map(Number))].sort((a, b) => a - b);
}

/** Return the word with a rank in it, or without it if it was there. */
export function toggled(word: string, rank: number): string {
  const ranks = ranksOf(word);
  const next = ranks.includes(rank) ? ranks.filter((one) => one !== rank) : ranksOf(`${word},${rank}`);
  return next.join(",");
}

/** Return what to follow. */
export function requestOf(job: string, ranks: string, level: string, regex: string): TopicRequest<"logs"> {
  const wanted = ranksOf(ranks);
  const grave = LEVELS.find((one) => one === level);
  return {
    topic: "logs",
    job,
    limit: FIRST,
    ...(wanted.length ? { ranks: wanted } : {}),
    ...(grave ? { level: grave } : {}),
    ...(regex ? { regex } : {}),
  };
}
