import { memo, useMemo, useState } from "react";

import styles from "../charts/card.module.css";
import { Chart } from "../charts/chart";
import { smoothingOf } from "../charts/choices";
import { drawn, xsOf } from "../charts/columns";
import { CurveSlider } from "../charts/curve-slider";
import { nearest } from "../charts/nearest";
import { PinButton } from "../charts/pin-button";
import { axisName, unitOf } from "../charts/units";
import { acrossOf, zoomOf, zoomWord } from "../charts/words";
import { Link } from "../ui/link";
import { useWord } from "../ui/router";
import { useLasting } from "../ui/use-lasting";
import { useWidth } from "../ui/use-width";
import { bucketRows } from "../charts/bucket-rows";
import { CurveState } from "./curve-state";
import { CurveTable } from "../charts/curve-table";
import { CurveValues } from "./curve-values";
import { useCurves } from "../charts/use-curves";

const BUCKETS = 300;
const HEIGHT = 200;
const PASSING = 120; // milliseconds in view; a chart that is scrolled past is not asked for

interface Props {
  job: string;
  name: string;
  /** When the job began, in seconds. */
  start: number;
}

/** One metric among all: its curve, and the numbers where the crosshair of all charts is. */
export const ChartCard = memo(function ChartCard({ job, name, start }: Props) {
  const [rank] = useWord("rank");
  const [axisWord] = useWord("x");
  const [scale] = useWord("y");
  const [smooth] = useWord("smooth");
  const [form] = useWord("view");
  const [zoomed, setZoomed] = useWord("zoom");
  const [hovered, setHovered] = useState<number | null>(null);
  const [picked, setPicked] = useState<number | null>(null);
  const [pixels, measured] = useWidth();
  const axis = acrossOf(axisWord);
  const zoom = useMemo(() => zoomOf(zoomed), [zoomed]);
  const wanted = useLasting(PASSING) ? { job, name, rank, buckets: BUCKETS } : null;
  const { curves, problem } = useCurves(wanted, { axis, zoom, start, pixels });
  const found = useMemo(
    () => drawn(curves ?? [], axis, smoothingOf(smooth), start),
    [curves, axis, smooth, start],
  );
  const [curve] = curves ?? [];
  const at = curve && picked !== null ? xsOf(curve, axis, start)[nearest(picked, curve.steps)] : undefined;
  return (
    <article className={styles.card} aria-label={name} data-testid="chart" data-name={name} data-row>
      <header className={styles.head}>
        <Link
          href={`/jobs/${encodeURIComponent(job)}?metric=${encodeURIComponent(name)}`}
          title={`${name}, with what happened along it`}
        >
          {name}
        </Link>
        <PinButton name={name} />
      </header>
      <div className={styles.values}>
        <CurveValues
          curves={curves ?? []}
          axis={axis}
          start={start}
          x={hovered ?? at ?? zoom?.[1] ?? null}
          unit={unitOf(name)}
        />
      </div>
      <div className={styles.area} ref={measured}>
        <CurveState name={name} curves={curves} problem={problem} rank={rank} />
        {form === "table" ? (
          <CurveTable
            name={name}
            rows={bucketRows(curves ?? [], axis, { zoom, start })}
            height={HEIGHT}
            start={axis === "relative" ? start : null}
          />
        ) : (
          <>
            <Chart
              name={axisName(name)}
              found={found}
              axis={axis}
              log={scale === "log"}
              height={HEIGHT}
              zoom={zoom}
              shared="charts"
              onZoom={(range) => setZoomed(zoomWord(range))}
              onHover={setHovered}
            />
            <CurveSlider curve={curve} picked={picked} onPick={setPicked} />
          </>
        )}
      </div>
    </article>
  );
});
