/** The curves of a metric: all of them at once, and finer in the zoomed range. */

import { useMemo } from "react";

import { useLive } from "../api/use-live";
import type { Curve, Problem } from "../api/wire";
import type { Across } from "./data/columns";
import { inUnit } from "./data/units";
import type { Zoom } from "./data/words";
import { bucketsOf, rangeOf, spliced } from "./data/zoomed";

export interface Wanted {
  job: string;
  name: string;
  /** A number, `all`, or nothing for the first. */
  rank: string;
  buckets: number;
  /** Also what later generations have replaced. */
  replaced: boolean;
}

export interface Look {
  axis: Across;
  zoom: Zoom | null;
  start?: number;
  /** How wide the chart is. */
  pixels: number;
}

/** Read curves, in the unit they are shown in, while the component is there; `null` reads nothing. Until the
 * finer ones come, the others do. */
export function useCurves(wanted: Wanted | null, { axis, zoom, start = 0, pixels }: Look): Found {
  const request = wanted && {
    topic: "series" as const,
    job: wanted.job,
    names: [wanted.name],
    ...(wanted.rank === "all" ? {} : { ranks: [Number(wanted.rank) || 0] }),
  };
  const more = wanted?.replaced ? { replaced: true } : {};
  const whole = useLive(request && { ...request, buckets: wanted.buckets });
  const older = useLive(request && wanted.replaced ? { ...request, ...more, buckets: wanted.buckets } : null);
  const curves = (older.value ?? whole.value)?.series;
  const range = useMemo(() => rangeOf(curves ?? [], axis, zoom, start), [curves, axis, zoom, start]);
  const close = useLive(request && range ? { ...request, ...more, buckets: bucketsOf(pixels), ...range } : null);
  const fine = close.value?.series;
  const found = useMemo(
    () => (curves && fine && range ? spliced(curves, fine, range) : curves)?.map(inUnit),
    [curves, fine, range],
  );
  return { curves: found, problem: whole.problem };
}

interface Found {
  curves: Curve[] | undefined;
  problem: Problem | undefined;
}
