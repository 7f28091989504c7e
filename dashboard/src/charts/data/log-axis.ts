/** A logarithmic axis: where it begins and ends, and which of its numbers are named. Pure. */

const LEAST = -300; // power of ten; what is smaller is hardly a number
const MOST = 8; // names on an axis

/** Return whole powers of ten around values. */
export function logRange(min: number, max: number): [number, number] {
  const low = Math.max(LEAST, Math.floor(Math.log10(min)));
  const high = Math.max(low + 1, Math.ceil(Math.log10(max)));
  return [power(low), power(high)];
}

/** Return the numbers to name between two powers of ten; within two of them also halves and fifths. */
export function logSplits(min: number, max: number): number[] {
  const [low, high] = [Math.round(Math.log10(min)), Math.round(Math.log10(max))];
  const every = Math.max(1, Math.ceil((high - low) / MOST));
  const parts = high - low <= 2 ? [1, 2, 5] : [1];
  const powers = Array.from({ length: Math.floor((high - low) / every) + 1 }, (_, at) => low + at * every);
  return powers.flatMap((exponent) => parts.map((part) => part * power(exponent))).filter((split) => split <= max);
}

/** As one writes it: 10 ** -24 is not quite 1e-24. */
function power(exponent: number): number {
  return Number(`1e${exponent}`);
}
