import { clock, number, span, whole } from "../ui/format";
import type { BucketRow } from "./bucket-rows";
import styles from "./curve-table.module.css";

export const HEADS = ["Step", "Rank", "Last", "Least", "Greatest", "Time", "Points"];

interface Props {
  row: BucketRow;
  index: number;
  top: number;
  start: number | null;
  onPick?: ((step: number) => void) | undefined;
}

/** One bucket in numbers; its step leads to what changed before it. */
export function CurveRow({ row, index, top, start, onPick }: Props) {
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
    >
      <span role="cell" title={steps}>
        {onPick ? (
          <button type="button" title={`What changed before step ${whole(step)}`} onClick={() => onPick(step)}>
            {steps}
          </button>
        ) : (
          steps
        )}
      </span>
      <span role="cell">{row.rank}</span>
      <b role="cell">{row.nans && row.last === null ? "no number" : number(row.last)}</b>
      <span role="cell">{number(row.min)}</span>
      <span role="cell">{number(row.max)}</span>
      <span role="cell">{when}</span>
      <span role="cell">{whole(row.count)}</span>
    </div>
  );
}
