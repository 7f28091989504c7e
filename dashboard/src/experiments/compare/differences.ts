/** What differs between runs, as a table with a baseline shows it. Pure. */

import type { Difference, Outcome } from "../../api/use-experiments";
import { shown } from "../../ui/text/format";
import { measured } from "../columns";

export interface Cell {
  text: string;
  /** `same` as the baseline, `other`, or `missing`: this run has no such name. */
  kind: "base" | "same" | "other" | "missing";
  /** How far a number is from the baseline's, in words. */
  against?: string;
  isBest?: boolean;
}

export interface Line {
  name: string;
  cells: Cell[];
}

/** Return the rows in which runs differ; a value is held against the baseline's. */
export function linesOf(rows: readonly Difference[], base: number): Line[] {
  return rows.filter(differs).map(({ name, values, missing }) => {
    const mine = written(values[base], missing[base]);
    const cells = values.map((value, at): Cell => {
      if (missing[at]) return { text: "not set", kind: "missing" };
      const kind = at === base ? "base" : written(value, false) === mine ? "same" : "other";
      return { text: shown(value), kind };
    });
    return { name, cells };
  });
}

/** Return what came of each metric: last, or current, and best; the best of all is marked. */
export function outcomesOf(rows: readonly Outcome[], base: number): Line[] {
  return rows
    .filter(({ name }) => !name.startsWith("loom/"))
    .map(({ name, last, best, best_step: steps, winner }) => {
      const cells = last.map((value, at): Cell => {
        if (value === null) return { text: "not logged", kind: "missing" };
        const top = best[at] == null ? "" : ` (best ${measured(best[at])} at ${steps[at] ?? "?"})`;
        const kind = at === base ? "base" : value === last[base] ? "same" : "other";
        return { text: measured(value) + top, kind, against: gap(value, last[base]), isBest: winner === at };
      });
      return { name, cells };
    });
}

function differs({ values, missing }: Difference): boolean {
  const words = values.map((value, at) => written(value, missing[at]));
  return new Set(words).size > 1;
}

function written(value: unknown, isMissing = false): string {
  return isMissing ? "missing" : JSON.stringify(value ?? null);
}

function gap(value: number | string, base: number | string | null | undefined): string {
  if (typeof value !== "number" || typeof base !== "number" || base === 0 || value === base) return "";
  const part = ((value - base) / Math.abs(base)) * 100;
  const digits = Math.abs(part) < 10 ? 1 : 0;
  return Math.abs(part) > 9999 ? "" : `${part > 0 ? "+" : "−"}${Math.abs(part).toFixed(digits)} %`;
}
