import type { ListedRun } from "../api/use-experiments";
import { Link } from "../ui/link";
import { StateBadge } from "../ui/state-badge";
import { isNumber, textOf } from "./columns";
import styles from "./run-line.module.css";

interface Props {
  run: ListedRun;
  columns: readonly string[];
  now: number;
  top: number;
  isChosen: boolean;
  onChoose: () => void;
}

/** One run of the table. */
export function RunLine({ run, columns, now, top, isChosen, onChoose }: Props) {
  return (
    <div
      role="row"
      className={styles.row}
      style={{ transform: `translateY(${top}px)` }}
      data-testid="run-row"
      data-run={run.run_id}
      data-chosen={isChosen || undefined}
    >
      <div role="cell" className={styles.name}>
        <input
          type="checkbox"
          aria-label={`Choose ${run.name || run.run_id} (${run.run_id})`}
          checked={isChosen}
          onChange={onChoose}
        />
        <div>
          <Link href={`/jobs/${encodeURIComponent(run.job_id)}`} title={run.name}>
            {run.name || run.run_id}
          </Link>
          <code>{run.run_id}</code>
        </div>
      </div>
      {columns.map((column) => {
        const text = column === "state" ? "" : textOf(run, column, now);
        return (
          <div
            key={column}
            role="cell"
            className={styles.cell}
            data-column={column}
            data-number={isNumber(column) || undefined}
            title={column === "commit" ? (run.commit ?? undefined) : text}
          >
            {column === "state" ? <StateBadge state={run.state} /> : text}
          </div>
        );
      })}
    </div>
  );
}
