import { memo, useCallback, useEffect, useMemo, useState } from "react";

import type { JobRow, Rank } from "../api/wire";
import styles from "../charts/card.module.css";
import { Chart } from "../charts/chart";
import { CurveTable } from "../charts/curve-table";
import { bucketRows } from "../charts/data/bucket-rows";
import { smoothingOf } from "../charts/data/choices";
import { drawn, hasReplaced, xsOf } from "../charts/data/columns";
import { axisName, unitOf } from "../charts/data/units";
import { acrossOf, nearest, SHOWN, zoomOf, zoomWord } from "../charts/data/words";
import { MetricGrid } from "../charts/metric-grid";
import { CurveSlider, GridTools, PinButton } from "../charts/tools";
import { useCurves } from "../charts/use-curves";
import { useLasting, useWidth } from "../ui/hooks";
import { Link, useWord } from "../ui/router";
import { CurveState, CurveValues } from "./curve-values";

interface Props {
  job: JobRow;
  metrics: readonly string[];
  ranks: readonly Rank[];
}

/** Every metric of a job; only charts in view are in the page, and only these are asked for. */
export function ChartGrid({ job, metrics, ranks }: Props) {
  const start = Date.parse(job.started_at ?? job.created_at ?? "") / 1000 || 0;
  const [isReplaced, setReplaced] = useState(false); // of any curve that was in view
  const onReplaced = useCallback(() => setReplaced(true), []);
  return (
    <MetricGrid
      metrics={metrics}
      tools={<GridTools ranks={ranks} hasReplaced={isReplaced} />}
      row={(names) =>
        names.map((name) => <ChartCard key={name} job={job.id} name={name} start={start} onReplaced={onReplaced} />)
      }
    />
  );
}

const BUCKETS = 300;
const HEIGHT = 200;
const PASSING = 120; // milliseconds in view; a chart that is scrolled past is not asked for

interface ChartCardProps {
  job: string;
  name: string;
  /** When the job began, in seconds. */
  start: number;
  onReplaced: () => void;
}

/** One metric among all: its curve, and the numbers where the crosshair of all charts is. */
const ChartCard = memo(function ChartCard({ job, name, start, onReplaced }: ChartCardProps) {
  const [rank] = useWord("rank");
  const [axisWord] = useWord("x");
  const [scale] = useWord("y");
  const [smooth] = useWord("smooth");
  const [form] = useWord("view");
  const [replaced] = useWord("replaced");
  const [zoomed, setZoomed] = useWord("zoom");
  const [hovered, setHovered] = useState<number | null>(null);
  const [picked, setPicked] = useState<number | null>(null);
  const [pixels, measured] = useWidth();
  const axis = acrossOf(axisWord);
  const zoom = useMemo(() => zoomOf(zoomed), [zoomed]);
  const wanted = useLasting(PASSING) ? { job, name, rank, buckets: BUCKETS, replaced: replaced === SHOWN } : null;
  const { curves, problem } = useCurves(wanted, { axis, zoom, start, pixels });
  const isReplaced = hasReplaced(curves);
  useEffect(() => {
    if (isReplaced) onReplaced();
  }, [isReplaced, onReplaced]);
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
