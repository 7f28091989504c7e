import { useVirtualizer } from "@tanstack/react-virtual";
import { useRef, useState } from "react";

import { clock, number, span, whole } from "../ui/text/format";
import styles from "./curve-table.module.css";
import type { BucketRow } from "./data/bucket-rows";

const HEIGHT = 28; // of a row, as the style sheet has it

interface Props {
  name: string;
  rows: readonly BucketRow[];
  height: number;
  /** Where a row's time is counted from, in seconds; null where it is a time of day. */
  start: number | null;
  onPick?: ((step: number) => void) | undefined;
}

/** A chart as numbers: a row for each bucket. It follows the newest until one scrolls down. */
export function CurveTable({ name, rows: newest, height, start, onPick }: Props) {
  const scroller = useRef<HTMLDivElement>(null);
  const [held, setHeld] = useState<readonly BucketRow[] | null>(null); // while one reads, nothing moves
  const rows = held ?? newest;
  const view = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => HEIGHT,
    getItemKey: (index) => rows[index]?.key ?? index,
    overscan: 10,
  });
  const onScroll = (top: number) => {
    if (top > 0 && !held) setHeld(newest);
    if (top <= 0 && held) setHeld(null);
  };
  return (
    <div
      ref={scroller}
      className={styles.table}
      style={{ height }}
      role="table"
      aria-label={`${name} as numbers`}
      aria-rowcount={rows.length + 1}
      // eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex -- it is scrolled by keys
      tabIndex={0}
      data-testid="curve-table"
      data-name={name}
      onScroll={(event) => onScroll(event.currentTarget.scrollTop)}
    >
      <div role="rowgroup" className={styles.head}>
        <div role="row" className={styles.row} aria-rowindex={1}>
          {HEADS.map((head) => (
            <span key={head} role="columnheader">
              {head}
            </span>
          ))}
        </div>
      </div>
      <div role="rowgroup" className={styles.body} style={{ height: view.getTotalSize() }} aria-label={`${whole(rows.length)} rows`}>
        {view.getVirtualItems().map(({ index, key, start: top }) => {
          const row = rows[index];
          return row ? (
            <CurveRow key={key} row={row} index={index + 2} top={top} start={start} onPick={onPick} />
          ) : null;
        })}
      </div>
    </div>
  );
}

const HEADS = ["Step", "Rank", "Last", "Min", "Max", "Time", "Points"];

interface CurveRowProps {
  row: BucketRow;
  index: number;
  top: number;
  start: number | null;
  onPick?: ((step: number) => void) | undefined;
}

/** One bucket in numbers; its step leads to what changed before it. */
function CurveRow({ row, index, top, start, onPick }: CurveRowProps) {
  const { first, step, time } = row;
  const steps = first === step ? whole(step) : `${whole(first)} to ${whole(step)}`;
  const when = start === null ? clock(time * 1000) : span(time - start);
  return (
    <div
      role="row"
      className={styles.row}
      style={{ transform: `translateY(${top}px)` }}
      aria-rowindex={index}
      data-testid="curve-row"
      data-step={step}
      data-rank={row.rank}
      data-replaced={row.replaced ?? undefined}
    >
      <span role="cell" title={row.replaced === null ? steps : `${steps}, replaced (generation ${row.replaced})`}>
        {onPick ? (
          <button type="button" title={`What changed before step ${whole(step)}`} onClick={() => onPick(step)}>
            {steps}
          </button>
        ) : (
          steps
        )}
        {row.replaced === null ? null : <small> replaced ({row.replaced})</small>}
      </span>
      <span role="cell">{row.rank}</span>
      <b role="cell">{row.nans && row.last === null ? "NaN" : number(row.last)}</b>
      <span role="cell">{number(row.min)}</span>
      <span role="cell">{number(row.max)}</span>
      <span role="cell">{when}</span>
      <span role="cell">{whole(row.count)}</span>
    </div>
  );
}
