/** The summary of a list of checkpoints: which are usable, which cannot be read. Pure. */

import type { Checkpoint } from "../api/wire";

export type State = Checkpoint["state"];

export interface Standing {
  /** The newest that a job can resume from. */
  newest: Checkpoint | null;
  usable: number;
  bytes: number;
  broken: Checkpoint[];
}

export interface Mark {
  key: string;
  step: number;
  state: State;
  /** From 0, the first step, to 1, the last one. */
  place: number;
}

const BROKEN: readonly State[] = ["damaged", "failed"];

/** Return the summary of a list, newest first as the server sends it. */
export function standingOf(items: readonly Checkpoint[]): Standing {
  const usable = items.filter(({ state }) => state === "committed");
  return {
    newest: usable.reduce<Checkpoint | null>((best, one) => (best && best.step >= one.step ? best : one), null),
    usable: usable.length,
    bytes: usable.reduce((sum, one) => sum + one.bytes, 0),
    broken: items.filter(({ state }) => BROKEN.includes(state)),
  };
}

/** Return a mark for each checkpoint along the steps; where two are of one step, the newer is last. */
export function marksOf(items: readonly Checkpoint[]): Mark[] {
  const steps = items.map(({ step }) => step);
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  return items
    .map((one) => ({
      key: keyOf(one),
      step: one.step,
      state: one.state,
      place: last > first ? (one.step - first) / (last - first) : 1,
    }))
    .reverse();
}

export function keyOf({ attempt, generation, step, created_at }: Checkpoint): string {
  return `${attempt}.${generation}.${step}.${created_at ?? ""}`;
}
