import { useMemo, useState } from "react";

import { Chart } from "../charts/chart";
import { smoothingOf } from "../charts/choices";
import { drawn } from "../charts/columns";
import { CurveSlider } from "../charts/curve-slider";
import { LabelledTable } from "../charts/labelled-table";
import { axisName, inUnit } from "../charts/units";
import { CurveValues } from "../curves/curve-values";
import { acrossOf, zoomOf, zoomWord } from "../charts/words";
import { useWord } from "../ui/router";
import type { Named } from "./data";
import styles from "./report-card.module.css";
import { RunValues } from "./run-values";
import { useNear } from "./use-near";

const HEIGHT = 200;

/** One metric: its curve, or several over each other; as a chart or as a table. */
export function ReportCard({ name, found }: { name: string; found: readonly Named[] }) {
  const [axisWord] = useWord("x");
  const [scale] = useWord("y");
  const [smooth] = useWord("smooth");
  const [form] = useWord("view");
  const [zoomed, setZoomed] = useWord("zoom");
  const [hovered, setHovered] = useState<number | null>(null);
  const [picked, setPicked] = useState<number | null>(null);
  const [isNear, near] = useNear();
  const axis = acrossOf(axisWord);
  const named = useMemo(() => found.map((one) => ({ ...one, curve: inUnit(one.curve) })), [found]);
  const curves = useMemo(() => named.map(({ curve }) => curve), [named]);
  const lines = useMemo(() => drawn(curves, axis, smoothingOf(smooth)), [curves, axis, smooth]);
  const zoom = useMemo(() => zoomOf(zoomed), [zoomed]);
  const [only] = curves;
  const x = hovered ?? (axis === "step" ? picked : null);
  return (
    <article ref={near} className={styles.card} aria-label={name} data-testid="chart" data-name={name}>
      <header className={styles.head}>
        <h3 title={name}>{name}</h3>
      </header>
      {form === "table" ? (
        <LabelledTable found={named} isRelative={axis === "relative"} />
      ) : (
        <>
          <div className={styles.values}>
            {curves.length > 1 ? (
              <RunValues found={named} axis={axis} x={x} />
            ) : (
              <CurveValues curves={curves} axis={axis} x={x} />
            )}
          </div>
          <div className={styles.area} style={{ minHeight: HEIGHT }}>
            {isNear && only ? (
              <Chart
                name={axisName(name)}
                found={lines}
                axis={axis}
                log={scale === "log"}
                height={HEIGHT}
                zoom={zoom}
                shared="charts"
                onZoom={(range) => setZoomed(zoomWord(range))}
                onHover={setHovered}
              />
            ) : null}
            <CurveSlider curve={only} picked={picked} onPick={setPicked} />
          </div>
        </>
      )}
    </article>
  );
}
