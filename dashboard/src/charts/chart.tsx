import "uplot/dist/uPlot.min.css";

import { useEffect, useEffectEvent, useRef } from "react";
import uPlot from "uplot";

import { useDark } from "../ui/theme/theme";
import { chartData, chartOptions, type Look, type View } from "./chart-options";
import styles from "./chart.module.css";
import type { Across, Drawn } from "./data/columns";
import type { Zoom } from "./data/words";

const HEIGHT = 300;

interface Props {
  found: Drawn;
  /** What the numbers are, with their unit. */
  name: string;
  /** Pixels that the axis on the left has at least. */
  gutter?: number;
  axis: Across;
  log: boolean;
  height?: number;
  picked?: number | null;
  /** The range that is shown; null is all. Dragging and double clicks ask for another. */
  zoom: Zoom | null;
  /** Charts that share this word have one crosshair. */
  shared?: string;
  onZoom: (zoom: Zoom | null) => void;
  onView?: (view: View) => void;
  onHover: (x: number | null) => void;
  onPick?: (x: number) => void;
}

/** A chart that follows its data; what is zoomed stays where it is. */
export function Chart({ found, axis, log, height = HEIGHT, picked = null, zoom, ...more }: Props) {
  const { name, gutter = 0, shared = "", ...on } = more;
  const { onZoom, onView, onHover, onPick } = on;
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const isDark = useDark();
  const look = JSON.stringify({ ...lookOf(found, axis, log), shared, name, gutter });
  const seen = useEffectEvent((chart: uPlot) => {
    onView?.(viewOf(chart));
    mark(chart, picked);
  });
  const hovered = useEffectEvent((chart: uPlot) => onHover(xUnder(chart)));
  const clicked = useEffectEvent((chart: uPlot) => {
    const { left, idx } = chart.cursor;
    if (idx != null && left != null && left >= 0) onPick?.(chart.posToVal(left, "x"));
  });
  const dragged = useEffectEvent((chart: uPlot) => {
    const { left, width } = chart.select;
    if (width <= 0) return;
    onZoom([chart.posToVal(left, "x"), chart.posToVal(left + width, "x")]);
    chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  });
  const widened = useEffectEvent(() => onZoom(null));
  const begun = useEffectEvent(() => chartData(found, log));

  useEffect(() => {
    const place = box.current;
    if (!place) return;
    const options = chartOptions(JSON.parse(look) as Look, place.clientWidth, height);
    const hooks: uPlot.Hooks.Arrays = {
      draw: [(drawn) => seen(drawn)],
      setCursor: [(moved) => hovered(moved)],
      setSelect: [(chosen) => dragged(chosen)],
    };
    const chart = new uPlot({ ...options, hooks }, begun(), place);
    plot.current = chart;
    chart.over.addEventListener("click", () => clicked(chart));
    chart.over.addEventListener("dblclick", () => widened());
    const watcher = new ResizeObserver(() => chart.setSize({ width: place.clientWidth, height }));
    watcher.observe(place);
    return () => {
      watcher.disconnect();
      chart.destroy();
      plot.current = null;
    };
  }, [look, isDark, height]);

  useEffect(() => {
    const chart = plot.current;
    if (!chart) return;
    chart.setData(chartData(found, log), zoom === null);
    if (zoom) chart.setScale("x", { min: zoom[0], max: zoom[1] });
  }, [found, log, look, isDark, height, zoom]);

  useEffect(() => mark(plot.current, picked), [picked, found, look, isDark]);

  return <div ref={box} className={styles.chart} data-testid="loss-chart" style={{ height }} />;
}

function lookOf(found: Drawn, axis: Across, log: boolean): Omit<Look, "shared" | "name" | "gutter"> {
  const [hasBand, hasRaw] = [found.band !== null, found.raw !== null];
  const replaced = found.replaced.map(({ of }) => of);
  return { axis, log, lines: found.lines.length, hasBand, hasRaw, replaced };
}

function xUnder({ cursor, data }: uPlot): number | null {
  return cursor.idx == null ? null : (data[0][cursor.idx] ?? null);
}

function viewOf(chart: uPlot): View {
  const { min, max } = chart.scales.x ?? {};
  const { left, width } = chart.over.getBoundingClientRect();
  const start = left - chart.root.getBoundingClientRect().left;
  return { min: min ?? 0, max: max ?? 0, left: start, width };
}

/** Mark the step whose causes are shown. */
function mark(chart: uPlot | null, picked: number | null): void {
  if (!chart) return;
  chart.over.querySelector("[data-picked]")?.remove();
  if (picked === null) return;
  const line = document.createElement("div");
  line.dataset.picked = "";
  line.className = styles.picked ?? "";
  line.style.left = `${chart.valToPos(picked, "x")}px`;
  chart.over.append(line);
}
