import { useCallback, useEffect, useMemo, useState } from "react";

import { Chart } from "../charts/chart";
import { smoothingOf } from "../charts/data/choices";
import { type Across, drawn, xsOf } from "../charts/data/columns";
import { axisName, inUnit } from "../charts/data/units";
import { acrossOf, nearest, SHOWN, zoomOf, zoomWord } from "../charts/data/words";
import { LabelledTable } from "../charts/labelled-table";
import { CurveSlider } from "../charts/tools";
import { CurveValues } from "../curves/curve-values";
import curveStyles from "../curves/curve-values.module.css";
import { useWord } from "../ui/router";
import { number } from "../ui/text/format";
import { type Named, withoutReplaced } from "./data";
import styles from "./report-card.module.css";

const HEIGHT = 200;

/** One metric: its curve, or several over each other; as a chart or as a table. */
export function ReportCard({ name, found }: { name: string; found: readonly Named[] }) {
  const [axisWord] = useWord("x");
  const [scale] = useWord("y");
  const [smooth] = useWord("smooth");
  const [form] = useWord("view");
  const [replaced] = useWord("replaced");
  const [zoomed, setZoomed] = useWord("zoom");
  const [hovered, setHovered] = useState<number | null>(null);
  const [picked, setPicked] = useState<number | null>(null);
  const [isNear, near] = useNear();
  const axis = acrossOf(axisWord);
  const isAlone = found.length === 1 && replaced === SHOWN;
  const named = useMemo(
    () => found.map(({ label, curve }) => ({ label, curve: inUnit(isAlone ? curve : withoutReplaced(curve)) })),
    [found, isAlone],
  );
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

const LINES = 6; // colours of lines; further ones begin anew

interface Props {
  found: readonly Named[];
  axis: Across;
  x: number | null;
}

/** The numbers of several curves under the pointer, or the newest. */
function RunValues({ found, axis, x }: Props) {
  return (
    <p className={curveStyles.values} data-testid="curve-values">
      {found.map(({ label, curve }, line) => (
        <span key={`${label} ${curve.role}`} className={curveStyles.one} data-series={(line % LINES) + 1}>
          {label} <b>{number(curve.last[nearest(x ?? Infinity, xsOf(curve, axis))])}</b>
        </span>
      ))}
    </p>
  );
}

const BESIDE = "1200px 0px"; // above and below what is in view

/** Whether an element is in view or close to it; what is far away is not drawn. */
function useNear(): [isNear: boolean, ref: (element: HTMLElement | null) => (() => void) | undefined] {
  const [isNear, setIsNear] = useState(false);
  const [isPrinting, setIsPrinting] = useState(false);
  const ref = useCallback((element: HTMLElement | null) => {
    if (!element) return undefined;
    const onChange = (entries: IntersectionObserverEntry[]) => setIsNear(entries.at(-1)?.isIntersecting ?? false);
    const watcher = new IntersectionObserver(onChange, { rootMargin: BESIDE });
    watcher.observe(element);
    return () => watcher.disconnect();
  }, []);
  useEffect(() => {
    const [begin, end] = [() => setIsPrinting(true), () => setIsPrinting(false)];
    window.addEventListener("beforeprint", begin);
    window.addEventListener("afterprint", end);
    return () => {
      window.removeEventListener("beforeprint", begin);
      window.removeEventListener("afterprint", end);
    };
  }, []);
  return [isNear || isPrinting, ref];
}
