/** Return which bucket is nearest to a place; -1 where there is none. */
export function nearest(at: number, xs: readonly number[]): number {
  if (at === Infinity) return xs.length - 1;
  let best = -1;
  xs.forEach((x, index) => {
    if (best < 0 || Math.abs(x - at) < Math.abs((xs[best] ?? 0) - at)) best = index;
  });
  return best;
}
