/** Whether a list sticks to its end. Pure: where it is scrolled to goes in. */

const NEAR = 24; // pixels from the end that count as the end

export interface Follow {
  isFollowing: boolean;
  top: number;
}

export interface Place {
  top: number;
  view: number;
  whole: number;
}

export const FOLLOWING: Follow = { isFollowing: true, top: 0 };

/** Return whether the list follows after it was scrolled: going up lets go, the end takes hold again. */
export function scrolled(before: Follow, { top, view, whole }: Place): Follow {
  if (whole - view - top <= NEAR) return { isFollowing: true, top };
  return { isFollowing: before.isFollowing && top >= before.top, top };
}

/** Return how many lines came after the one that was the last when following stopped. */
export function newSince(keys: readonly { key: string }[], last: string | undefined): number {
  for (let at = keys.length - 1; at >= 0; at -= 1) {
    if (keys[at]?.key === last) return keys.length - 1 - at;
  }
  return keys.length;
}
