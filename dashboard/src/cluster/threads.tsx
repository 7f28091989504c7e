import styles from "./threads.module.css";
import type { Thread } from "./weave";

const WIDTH = 100; // of the drawing, in its own units; the page stretches it

interface Props {
  threads: readonly Thread[];
  height: number;
  /** The row that is pointed at; what is not tied to it steps back. */
  touched: string;
}

/** The threads between devices and ranks. The rows have the same as text, so this is only a drawing. */
export function Threads({ threads, height, touched }: Props) {
  return (
    <svg className={styles.threads} viewBox={`0 0 ${WIDTH} ${height}`} height={height} preserveAspectRatio="none" aria-hidden="true">
      {threads.map(({ key, ends, from, to, health, count }) => (
        <path
          key={key}
          data-testid="thread"
          data-health={health}
          data-count={count}
          data-back={touched !== "" && !ends.includes(touched) ? "yes" : "no"}
          d={`M0 ${from}C${WIDTH * 0.45} ${from} ${WIDTH * 0.55} ${to} ${WIDTH} ${to}`}
          style={{ strokeWidth: widthOf(count) }}
          vectorEffect="non-scaling-stroke"
        />
      ))}
    </svg>
  );
}

function widthOf(count: number): number {
  return Math.min(9, 1.75 + 1.25 * Math.log2(count));
}
