import { useMemo, useState } from "react";

import { useLive } from "../api/use-live";
import type { Rank } from "../api/wire";
import { Chart } from "../charts/chart";
import type { View } from "../charts/chart-options";
import { CurveTable } from "../charts/curve-table";
import { bucketRows } from "../charts/data/bucket-rows";
import { metricOf, smoothingOf } from "../charts/data/choices";
import { type Axis, drawn, hasReplaced, xsOf } from "../charts/data/columns";
import { axisName, unitOf } from "../charts/data/units";
import { nearest, SHOWN, zoomOf, zoomWord } from "../charts/data/words";
import { CurveSlider, DrawTools } from "../charts/tools";
import { useCurves } from "../charts/use-curves";
import { Panel, Tools } from "../ui/panel";
import { useWord } from "../ui/router";
import { Causes } from "./causes";
import styles from "./curve-panel.module.css";
import { CurveState, CurveValues } from "./curve-values";
import { momentOf } from "./moment";
import { peakNear } from "./places";
import { Timeline } from "./timeline";

const BUCKETS = 600;
const TALL = 440; // pixels of the table; as much as a chart with its timeline
const GUTTER = 82; // pixels; the names of the timeline's rows are in it
const BESIDE = 0.02; // of the buckets in view: so near, a click means the spike beside it

interface Props {
  job: string;
  metrics: readonly string[];
  ranks: readonly Rank[];
}

/** A curve, what happened along it, and what changed before a place in it. */
export function CurvePanel({ job, metrics, ranks }: Props) {
  const [metric] = useWord("metric");
  const [rank] = useWord("rank");
  const [axisWord] = useWord("x");
  const [scale] = useWord("y");
  const [smooth] = useWord("smooth");
  const [zoomed, setZoomed] = useWord("zoom");
  const [form] = useWord("view");
  const [replaced] = useWord("replaced");
  const axis: Axis = axisWord === "time" ? "time" : "step";
  const name = metricOf(metrics, metric);
  const zoom = useMemo(() => zoomOf(zoomed), [zoomed]);
  const [view, setView] = useState<View>({ min: 0, max: 0, left: GUTTER, width: 0 });
  const wanted = name ? { job, name, rank, buckets: BUCKETS, replaced: replaced === SHOWN } : null;
  const { curves, problem } = useCurves(wanted, { axis, zoom, pixels: view.width });
  const timeline = useLive({ topic: "timeline", job, limit: 500 });
  const found = useMemo(() => drawn(curves ?? [], axis, smoothingOf(smooth)), [curves, axis, smooth]);
  const [hovered, setHovered] = useState<number | null>(null);
  const [picked, setPicked] = useState<number | null>(null);
  const [curve] = curves ?? [];
  const moment = momentOf(curve, picked);
  const entries = timeline.value?.items;

  const pick = (x: number) => {
    if (!curve) return;
    const xs = xsOf(curve, axis);
    const shown = xs.filter((at) => at >= view.min && at <= view.max).length;
    const at = peakNear(curve, nearest(x, xs), Math.max(1, Math.round(shown * BESIDE)));
    setPicked(curve.steps[at] ?? null);
  };

  return (
    <Panel
      title={name || "Metrics"}
      tools={<CurveTools metrics={metrics} name={name} ranks={ranks} hasReplaced={hasReplaced(curves)} />}
    >
      {form === "table" ? (
        <div className={styles.area}>
          <CurveState name={name} curves={curves} problem={problem} rank={rank} />
          <CurveTable name={name} rows={bucketRows(curves ?? [], axis, { zoom })} height={TALL} start={null} onPick={setPicked} />
        </div>
      ) : (
        <>
          <CurveValues curves={curves ?? []} axis={axis} x={hovered ?? zoom?.[1] ?? null} unit={unitOf(name)} />
          <div className={styles.area}>
            <CurveState name={name} curves={curves} problem={problem} rank={rank} />
            <Chart
              name={axisName(name)}
              gutter={GUTTER}
              found={found}
              axis={axis}
              log={scale === "log"}
              picked={moment?.[axis] ?? null}
              zoom={zoom}
              onZoom={(range) => setZoomed(zoomWord(range))}
              onView={(next) => setView((old) => (isSame(old, next) ? old : next))}
              onHover={setHovered}
              onPick={pick}
            />
            <CurveSlider curve={curve} picked={picked} onPick={setPicked} />
          </div>
          <Timeline entries={entries} axis={axis} curve={curve} view={view} />
          <p className={styles.hint}>
            {zoom ? (
              <>
                Double-click to zoom out, or <button onClick={() => setZoomed("")}>show all</button>.
              </>
            ) : (
              "Drag to zoom."
            )}{" "}
            Click a spike to see what changed before it.
          </p>
        </>
      )}
      {moment ? <Causes name={name} moment={moment} entries={entries} onClose={() => setPicked(null)} /> : null}
    </Panel>
  );
}

function isSame(a: View, b: View): boolean {
  return a.min === b.min && a.max === b.max && a.left === b.left && a.width === b.width;
}

interface CurveToolsProps {
  metrics: readonly string[];
  name: string;
  ranks: readonly Rank[];
  hasReplaced: boolean;
}

/** Which curve, and how it is drawn. All of it is in the address. */
function CurveTools({ metrics, name, ranks, hasReplaced }: CurveToolsProps) {
  const [, setMetric] = useWord("metric");
  const known = name && !metrics.includes(name) ? [name, ...metrics] : metrics;
  return (
    <Tools>
      <select aria-label="Metric" data-testid="metric" value={name} onChange={(event) => setMetric(event.target.value)}>
        {known.map((one) => (
          <option key={one}>{one}</option>
        ))}
      </select>
      <DrawTools ranks={ranks} axes={["step", "time"]} hasReplaced={hasReplaced} />
    </Tools>
  );
}
