import type { Curve } from "../api/wire";
import { nearest } from "../charts/data/words";
import type { Moment } from "./causes-of";

export interface Picked extends Moment {
  value: number | null;
  isNumber: boolean;
}

/** Return the bucket of a step; buckets may have been computed again since. */
export function momentOf(curve: Curve | undefined, picked: number | null): Picked | null {
  if (!curve || picked === null) return null;
  const at = nearest(picked, curve.steps);
  const [step, time] = [curve.steps[at], curve.times[at]];
  if (step === undefined || time === undefined) return null;
  return { step, time, value: curve.max[at] ?? null, isNumber: !curve.nans[at] };
}
