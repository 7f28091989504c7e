/** The options of uPlot: series, axes and colours. */

import uPlot from "uplot";

import { number, span, whole } from "../ui/text/format";
import { colour, faded } from "../ui/theme/theme";
import type { Across, Drawn } from "./data/columns";
import { logRange, logSplits } from "./data/log-axis";

const [LINEAR, LOGARITHMIC] = [1, 3]; // uPlot's enum has no values at run time
const LINES = 6; // colours of series; further ones begin anew, dashed
const [GUTTER, NAME] = [50, 18]; // pixels of the axis on the left, and of an axis' name

const SPANS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400]; // seconds
const DAYS = [2, 5, 10, 20, 50, 100].map((days) => days * 86_400);

/** What is in view: a range of the axis, and where it is in pixels. */
export interface View {
  min: number;
  max: number;
  left: number;
  width: number;
}

export interface Look {
  axis: Across;
  log: boolean;
  lines: number;
  hasBand: boolean;
  hasRaw: boolean;
  /** For each line of what was replaced, the line that it belongs to. */
  replaced: number[];
  /** Charts that share this word have one crosshair. */
  shared: string;
  /** What the numbers are, with their unit. */
  name: string;
  /** Pixels that the axis on the left has at least, its name included. */
  gutter: number;
}

/** Return the columns in the order of `chartOptions`' series; a logarithm knows nothing below zero. */
export function chartData(found: Drawn, log: boolean): uPlot.AlignedData {
  const older = found.replaced.map(({ line }) => line);
  const columns = [...(found.band ?? []), ...(found.raw ? [found.raw] : []), ...older, ...found.lines];
  const known = (value: number | null | undefined) => (value == null || value > 0 ? value : null);
  return [found.xs, ...(log ? columns.map((column) => column.map(known)) : columns)];
}

/** Return the options for a look; everything else of a chart comes with its data. */
export function chartOptions(look: Look, size: uPlot.Options["width"], height: number): uPlot.Options {
  const [line, text] = [colour("line"), colour("text-faint")];
  const ink = Array.from({ length: LINES }, (_, at) => colour(`series-${at + 1}`));
  const first = ink[0] ?? "";
  const edge: uPlot.Series = { stroke: faded(first, look.hasRaw ? 0.15 : 0.5), width: 1, points: { show: false } }; // a lone peak is a line
  const raw: uPlot.Series = { stroke: faded(first, 0.35), width: 1, points: { show: false } };
  return {
    width: size,
    height,
    legend: { show: false },
    padding: [8, 8, 0, 0],
    cursor: {
      y: false,
      drag: { x: true, y: false, dist: 5, setScale: false },
      points: { size: 7 },
      ...(look.shared ? { sync: crosshair(look.shared) } : {}),
    },
    scales: { x: { time: look.axis === "time" }, y: look.log ? LOG_SCALE : { distr: LINEAR } },
    axes: [
      { ...axis(line, text, ACROSS[look.axis]), size: 24, labelSize: 16, labelGap: -2, ...AXES[look.axis] },
      {
        ...axis(line, text, look.name),
        size: Math.max(GUTTER, look.gutter - NAME),
        values,
        ...(look.log ? LOG_AXIS : {}),
      },
    ],
    bands: look.hasBand ? [{ series: [2, 1], fill: faded(first, 0.18) }] : [],
    series: [
      {},
      ...(look.hasBand ? [edge, edge] : []),
      ...(look.hasRaw ? [raw] : []),
      ...look.replaced.map((of): uPlot.Series => {
        const stroke = faded(ink[of % LINES] ?? first, 0.6);
        return { stroke, width: 1.4, dash: [4, 4], points: { show: isLonely, size: 5 } };
      }),
      ...Array.from({ length: look.lines }, (_, at): uPlot.Series => {
        const points = { show: isLonely, size: 6 };
        const dash = at >= LINES ? { dash: [6, 4] } : {};
        return { stroke: ink[at % LINES] ?? first, width: 1.8, points, spanGaps: look.lines > 1, ...dash };
      }),
    ],
  };
}

/** A line of one value is a point: there is nothing to draw it to. */
function isLonely(chart: uPlot, series: number): boolean {
  let count = 0;
  for (const value of chart.data[series] ?? []) {
    if (value != null) count += 1;
    if (count > 1) return false;
  }
  return count === 1;
}

function axis(line: string, text: string, name: string): uPlot.Axis {
  return {
    label: name,
    labelSize: NAME,
    labelFont: "11px system-ui, sans-serif",
    stroke: text,
    font: "11px system-ui, sans-serif",
    grid: { stroke: line, width: 1 },
    ticks: { stroke: line, width: 1, size: 4 },
  };
}

/** A logarithmic axis has lines that are not named. */
function values(_: uPlot, splits: (number | null)[]): string[] {
  return splits.map((value) => (value === null ? "" : number(value)));
}

/** The pointer is shared, a drag is not: it is reported to the owner of the range. */
function crosshair(key: string): uPlot.Cursor.Sync {
  const isMove = (type: string) => type === "mousemove" || type === "mouseleave";
  return { key, setSeries: false, scales: ["x", null], filters: { pub: isMove, sub: isMove } };
}

/** Our own: with values such as 1e-40 uPlot's own steps never reach the end. */
const LOG_SCALE: uPlot.Scale = {
  distr: LOGARITHMIC,
  range: (_, min, max) => (min > 0 ? logRange(min, max) : [1, 10]), // no number yet: there is null
};
const LOG_AXIS: Partial<uPlot.Axis> = {
  splits: (_, __, min, max) => logSplits(min, max),
  filter: (_, splits) => splits,
};

const ACROSS: Record<Across, string> = { step: "step", time: "time", relative: "time since the start" };
const AXES: Record<Across, Partial<uPlot.Axis>> = {
  step: { values: steps },
  time: {},
  relative: { incrs: [...SPANS, ...DAYS], space: 70, values: spans },
};

function spans(_: uPlot, splits: number[]): string[] {
  return splits.map((seconds) => (seconds ? `${seconds < 0 ? "-" : ""}${span(Math.abs(seconds))}` : "0"));
}

function steps(_: uPlot, splits: number[]): string[] {
  return splits.map((step) => (Number.isInteger(step) ? whole(step) : ""));
}
