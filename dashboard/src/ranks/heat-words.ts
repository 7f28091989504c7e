/** What can be looked at of all ranks, for how long, and how its values are written. */

import { bytes, number, span } from "../ui/text/format";

export const STEP_SECONDS = "loom/step_seconds";

export const MEASURES: readonly (readonly [name: string, text: string, write: (value: number) => string])[] = [
  [STEP_SECONDS, "Step time", span],
  ["loom/cpu", "CPU", (value) => `${Math.round(value * 100)} %`],
  ["loom/memory", "Memory", bytes],
  ["loom/device_memory", "Device memory", bytes],
];

export const SPANS: readonly (readonly [seconds: string, text: string])[] = [
  ["", "last 10 min"],
  ["3600", "last hour"],
  ["21600", "last 6 h"],
  ["86400", "last day"],
];

/** Return a value as its measure is written. */
export function written(name: string, value: number | null | undefined): string {
  if (value == null) return "no data";
  return (MEASURES.find(([one]) => one === name)?.[2] ?? number)(value);
}

/** Return the seconds that a word of the address means. */
export function spanOf(word: string): number {
  return SPANS.some(([seconds]) => seconds === word) ? Number(word) || 600 : 600;
}
