import { useWindowVirtualizer } from "@tanstack/react-virtual";

import { useTop } from "../ui/hooks";
import { type Shown, stretches } from "./heat-look";
import styles from "./heat-table.module.css";
import { written } from "./heat-words";

const [STRETCHES, HEIGHT] = [6, 32]; // columns of the table, and pixels of a line

interface Props {
  name: string;
  shown: Shown;
  timeOf: (column: number) => string;
}

/** The same as numbers: of each rank the greatest of some stretches of time. */
export function HeatTable({ name, shown, timeOf }: Props) {
  const [margin, body] = useTop();
  const { lines } = shown;
  const view = useWindowVirtualizer({ count: lines.length, estimateSize: () => HEIGHT, overscan: 12, scrollMargin: margin });
  const cuts = stretches(lines[0]?.values.length ?? 0, STRETCHES);
  return (
    <div role="table" aria-label="Ranks over time" aria-rowcount={lines.length + 1} className={styles.table}>
      <div role="row" className={styles.line}>
        <span role="columnheader">Rank</span>
        {cuts.map(([from]) => (
          <span key={from} role="columnheader">
            {timeOf(from)}
          </span>
        ))}
      </div>
      <div ref={body} role="rowgroup" className={styles.body} style={{ height: lines.length * HEIGHT }}>
        {view.getVirtualItems().map(({ index, key }) => {
          const line = lines[index];
          return line ? (
            <div key={key} role="row" className={styles.line} style={{ transform: `translateY(${index * HEIGHT}px)` }}>
              <b role="rowheader">{line.rank}</b>
              {cuts.map(([from, to]) => (
                <span key={from} role="cell">
                  {written(name, greatest(line.values.slice(from, to)))}
                </span>
              ))}
            </div>
          ) : null;
        })}
      </div>
    </div>
  );
}

function greatest(values: readonly (number | null)[]): number | null {
  return values.reduce((most, one) => (one !== null && (most === null || one > most) ? one : most), null);
}
