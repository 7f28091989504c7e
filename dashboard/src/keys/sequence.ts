/** Sequences of keys, matched against the bound ones. Pure: the time is a parameter. */

export interface Begun {
  /** The keys of an incomplete sequence; empty where none has begun. */
  keys: string;
  since: number;
}

export interface Pressed {
  next: Begun;
  /** The sequence that is complete now, or none. */
  done: string | null;
  /** Whether the key is part of a sequence, so that the browser leaves it alone. */
  isTaken: boolean;
}

export const QUIET: Begun = { keys: "", since: 0 };
const PAUSE = 1500; // milliseconds between two keys of a sequence

/** Return the effect of a key. A sequence that is not bound ends: its last key has no effect of its own. */
export function press(before: Begun, key: string, now: number, bound: readonly string[]): Pressed {
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
