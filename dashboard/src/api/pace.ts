/** How often a page renders new data: as often as one can see, and no more than it can afford. Pure. */

const SHORTEST = 100; // milliseconds; a faster change is not visible
const LONGEST = 1_000;
const SHARE = 3; // so many times as long as showing it took: a quarter of the time at most

/** How many subscriptions are rendered in one frame. */
export const PART = 16;

/** Return how many milliseconds to rest after something was shown, by what that took. */
export function restAfter(cost: number): number {
  return Math.min(LONGEST, Math.max(SHORTEST, SHARE * cost));
}
