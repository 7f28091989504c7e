/** How often a page is told what is new: as often as one sees, and no more than it can afford. Pure. */

const SHORTEST = 100; // milliseconds; sooner nobody sees it
const LONGEST = 1_000;
const SHARE = 3; // so many times as long as showing it took: a quarter of the time at most

/** Of so many subscriptions a page is told in one frame. */
export const PART = 16;

/** Return how many milliseconds to rest after something was shown, by what that took. */
export function restAfter(cost: number): number {
  return Math.min(LONGEST, Math.max(SHORTEST, SHARE * cost));
}
