/** Which ranks take longer than the others, and since when. Pure. */

import type { Shown } from "./heat-look";

const SLOW = 1.5; // times the middle of all ranks at that time
const LASTING = 3; // columns; shorter ones are shown by colour only
const RECENT = 3; // columns from the end: who was slow before that is slow no longer

export interface Slow {
  rank: number;
  role: string;
  /** The column since which it is slow without a pause. */
  since: number;
  /** How many times as long as the middle of all, in the newest cell. */
  times: number;
}

/** Return who is slow now, the slowest first; ranks that wait for each other are equally slow. */
export function slowOf({ lines }: Shown): Slow[] {
  const count = lines[0]?.values.length ?? 0;
  const middles = Array.from({ length: count }, (_, at) => middleOf(lines.map(({ values }) => values[at] ?? null)));
  return lines
    .flatMap(({ rank, role, values }): Slow[] => {
      const last = values.findLastIndex((value) => value !== null);
      if (last < count - RECENT) return [];
      let since = last + 1;
      while (since > 0 && isSlow(values[since - 1] ?? null, middles[since - 1] ?? null)) since -= 1;
      const times = (values[last] ?? 0) / (middles[last] ?? 1);
      return last - since + 1 >= LASTING ? [{ rank, role, since, times }] : [];
    })
    .sort((a, b) => b.times - a.times);
}

function isSlow(value: number | null, middle: number | null): boolean {
  return value !== null && middle !== null && middle > 0 && value > SLOW * middle;
}

/** The lower middle, so that of two ranks the slower one is the slow one. */
function middleOf(values: readonly (number | null)[]): number | null {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
  return sorted[Math.floor((sorted.length - 1) / 2)] ?? null;
}
