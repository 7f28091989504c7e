/** Keys that are pressed one after the other, against what is bound. Pure: the time goes in. */

export interface Begun {
  /** The keys of a sequence that is not whole yet; empty where none has begun. */
  keys: string;
  since: number;
}

export interface Heard {
  next: Begun;
  /** The sequence that has become whole, or none. */
  done: string | null;
  /** Whether the key is part of a sequence, so that the browser leaves it alone. */
  isTaken: boolean;
}

export const QUIET: Begun = { keys: "", since: 0 };
const PAUSE = 1500; // milliseconds between two keys of a sequence

/** Return what a key comes to. A sequence that goes nowhere ends: its last key does nothing by itself. */
export function heard(before: Begun, key: string, now: number, bound: readonly string[]): Heard {
  const isLate = now - before.since > PAUSE;
  const begun = isLate ? "" : before.keys;
  const keys = begun ? `${begun} ${key}` : key;
  if (bound.includes(keys)) return { next: QUIET, done: keys, isTaken: true };
  if (begins(keys, bound)) return { next: { keys, since: now }, done: null, isTaken: true };
  if (begun && begins(key, bound)) return { next: { keys: key, since: now }, done: null, isTaken: true };
  return { next: QUIET, done: null, isTaken: begun !== "" };
}

function begins(keys: string, bound: readonly string[]): boolean {
  return bound.some((one) => one.startsWith(`${keys} `));
}
