import { useMemo, useState } from "react";

import type { Run } from "../../api/use-experiments";
import type { Reading } from "../../api/use-live";
import type { Curve } from "../../api/wire";
import styles from "../../charts/card.module.css";
import { Chart } from "../../charts/chart";
import { smoothingOf } from "../../charts/data/choices";
import { type Across, overlaid, xsOf } from "../../charts/data/columns";
import { axisName, inUnit } from "../../charts/data/units";
import { acrossOf, nearest, zoomOf, zoomWord } from "../../charts/data/words";
import { LabelledTable } from "../../charts/labelled-table";
import { SeriesMark } from "../../charts/series-mark";
import { CurveSlider, PinButton } from "../../charts/tools";
import { Skeleton } from "../../ui/panel";
import { useWord } from "../../ui/router";
import { number } from "../../ui/text/format";
import compareValuesStyles from "../compare-values.module.css";

const HEIGHT = 200;

interface Props {
  name: string;
  runs: readonly Run[];
  /** The data of each run; shorter while nothing has been requested. */
  found: readonly Reading<"series">[];
}

/** One metric of all runs over each other, each in its colour. */
export function CompareCard({ name, runs, found }: Props) {
  const [axisWord] = useWord("x");
  const [scale] = useWord("y");
  const [smooth] = useWord("smooth");
  const [form] = useWord("view");
  const [zoomed, setZoomed] = useWord("zoom");
  const [hovered, setHovered] = useState<number | null>(null);
  const [picked, setPicked] = useState<number | null>(null);
  const axis = acrossOf(axisWord);
  const starts = useMemo(() => runs.map(startOf), [runs]);
  const curves = useMemo(
    () =>
      runs.map((_, at) => {
        const own = found[at]?.value?.series.find((curve) => curve.name === name);
        return own && inUnit(own);
      }),
    [runs, found, name],
  );
  const drawn = useMemo(() => overlaid(curves, axis, smoothingOf(smooth), starts), [curves, axis, smooth, starts]);
  const zoom = useMemo(() => zoomOf(zoomed), [zoomed]);
  const labelled = useMemo(
    () =>
      runs.flatMap((run, at) => {
        const own = curves[at];
        return own ? [{ label: run.name, curve: { ...own, times: xsOf(own, axis === "relative" ? axis : "time", starts[at]) } }] : [];
      }),
    [runs, curves, axis, starts],
  );
  const first = curves.findIndex(Boolean);
  const curve = curves[first];
  const at = curve && picked !== null ? xsOf(curve, axis, starts[first])[nearest(picked, curve.steps)] : undefined;
  const isComing = found.length === 0 || found.some((one) => !one.value && !one.problem);
  const problem = found.find((one) => one.problem)?.problem;
  return (
    <article className={styles.card} aria-label={name} data-testid="compared" data-name={name} data-row>
      <header className={styles.head}>
        <h3 title={name}>{name}</h3>
        <PinButton name={name} />
      </header>
      <div className={styles.values}>
        <CompareValues runs={runs} curves={curves} axis={axis} starts={starts} x={hovered ?? at ?? null} />
      </div>
      <div className={styles.area}>
        {isComing && !curve ? <Skeleton height={HEIGHT - 20} /> : null}
        {problem ? <p role="alert">{problem.detail}</p> : null}
        {!isComing && !curve && !problem ? <p>Rank 0 of none of these runs has logged {name}.</p> : null}
        {curve && form === "table" ? <LabelledTable found={labelled} isRelative={axis === "relative"} /> : null}
        {curve && form !== "table" ? (
          <Chart
            name={axisName(name)}
            found={drawn}
            axis={axis}
            log={scale === "log"}
            height={HEIGHT}
            zoom={zoom}
            shared="compare"
            onZoom={(range) => setZoomed(zoomWord(range))}
            onHover={setHovered}
          />
        ) : null}
        {form === "table" ? null : <CurveSlider curve={curve} picked={picked} onPick={setPicked} />}
      </div>
    </article>
  );
}

function startOf(run: Run): number {
  return Date.parse(run.started_at ?? run.created_at ?? "") / 1000 || 0;
}

interface CompareValuesProps {
  runs: readonly Run[];
  curves: readonly (Curve | undefined)[];
  axis: Across;
  starts: readonly number[];
  x: number | null;
}

/** The number of each run under the pointer, or its newest. */
function CompareValues({ runs, curves, axis, starts, x }: CompareValuesProps) {
  return (
    <p className={compareValuesStyles.values}>
      {curves.map((curve, at) => {
        const run = runs[at];
        if (!run || !curve) return null;
        const bucket = nearest(x ?? Infinity, xsOf(curve, axis, starts[at]));
        return (
          <span key={run.run_id} data-testid="compared-value" data-run={run.run_id} title={run.name || run.run_id}>
            <SeriesMark line={at} /> <span className="unseen">{run.run_id}</span>
            <b>{number(curve.last[bucket])}</b>
          </span>
        );
      })}
    </p>
  );
}
