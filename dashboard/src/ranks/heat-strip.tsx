import { useEffect, useRef } from "react";

import { useWidth } from "../ui/hooks";
import { colour, useDark } from "../ui/theme/theme";
import { cellAt, heightOf, type Place, type Scale, shadeOf, SHADES, type Shown } from "./heat-look";
import styles from "./heat-strip.module.css";

const LETTERS = 11; // pixels that a number is high

interface Props {
  shown: Shown;
  scale: Scale;
  chosen: Place | null;
  onChoose: (place: Place | null) => void;
}

/** A line a rank, a colour a cell; drawn by hand, so a thousand ranks are as quick as two. */
export function HeatStrip({ shown, scale, chosen, onChoose }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, measured] = useWidth();
  const isDark = useDark();
  const height = heightOf(shown.lines.length);
  const columns = shown.lines[0]?.values.length ?? 1;
  useEffect(() => {
    if (canvas.current && width) paint(canvas.current, shown, scale, width);
  }, [shown, scale, width, isDark]);
  const mark = chosen && {
    ...{ left: (chosen.column / columns) * width, top: chosen.line * height },
    ...{ width: Math.max(3, width / columns), height },
  };
  return (
    <div className={styles.box}>
      <div className={styles.names} aria-hidden="true">
        {shown.lines.map(({ rank, role }, at) =>
          at % Math.ceil((LETTERS + 3) / height) === 0 ? (
            <span key={`${rank} ${role}`} style={{ top: at * height, height: Math.max(height, LETTERS) }}>
              {rank}
            </span>
          ) : null,
        )}
      </div>
      <div ref={measured} className={styles.cells} style={{ height: shown.lines.length * height }}>
        <canvas
          ref={canvas}
          data-testid="heat"
          aria-hidden="true"
          onPointerMove={({ nativeEvent: { offsetX, offsetY } }) => onChoose(cellAt(offsetX, offsetY, width, shown))}
          onPointerLeave={() => onChoose(null)}
        />
        {mark ? <i className={styles.mark} style={mark} /> : null}
      </div>
    </div>
  );
}

function paint(canvas: HTMLCanvasElement, { lines }: Shown, scale: Scale, width: number): void {
  const [ratio, height] = [window.devicePixelRatio || 1, heightOf(lines.length)];
  Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(lines.length * height * ratio) });
  Object.assign(canvas.style, { width: `${width}px`, height: `${lines.length * height}px` });
  const brush = canvas.getContext("2d");
  if (!brush) return;
  const ink = inks();
  const line = (at: number) => Math.round(at * height * ratio);
  const gap = height >= 6 ? Math.round(ratio) : 0;
  lines.forEach(({ values }, row) => {
    const column = (at: number) => Math.round((at / values.length) * canvas.width);
    values.forEach((value, at) => {
      if (value === null) return;
      brush.fillStyle = ink[shadeOf(value, scale)] ?? "";
      brush.fillRect(column(at), line(row), column(at + 1) - column(at), line(row + 1) - line(row) - gap);
    });
  });
}

/** The shades between three colours of the theme: each is lighter, or darker, than the one before. */
function inks(): string[] {
  const stops = ["heat-low", "heat-middle", "heat-high"].map((token) => numbers(colour(token)));
  return Array.from({ length: SHADES }, (_, shade) => {
    const at = (shade / (SHADES - 1)) * (stops.length - 1);
    const from = Math.min(stops.length - 2, Math.floor(at));
    const [low = [], high = []] = [stops[from], stops[from + 1]];
    const mixed = low.map((value, part) => Math.round(value + (at - from) * ((high[part] ?? value) - value)));
    return `rgb(${mixed.join(" ")})`;
  });
}

function numbers(found: string): number[] {
  return (found.match(/[\d.]+/g) ?? []).slice(0, 3).map(Number);
}
