import type { Run } from "../../api/use-experiments";
import { SeriesMark } from "../../charts/series-mark";
import { Icon } from "../../ui/icon";
import { StateBadge } from "../../ui/indicators";
import { Link } from "../../ui/router";
import styles from "./compare-runs.module.css";

interface Props {
  runs: readonly Run[];
  base: number;
  onBase: (run: string) => void;
  onRemove: (run: string) => void;
}

/** The runs that are compared: the colour of each, how it is, and which one the others are held against. */
export function CompareRuns({ runs, base, onBase, onRemove }: Props) {
  return (
    <ul className={styles.runs} aria-label="Compared runs">
      {runs.map((run, at) => (
        <li key={run.run_id} data-testid="compared-run" data-run={run.run_id} data-state={run.state}>
          <SeriesMark line={at} />
          <div className={styles.name}>
            <Link href={`/jobs/${encodeURIComponent(run.job_id)}`}>{run.name || run.run_id}</Link>
            <code title={run.run_id}>{run.run_id}</code>
          </div>
          <StateBadge state={run.state} />
          <label>
            <input
              type="radio"
              name="baseline"
              checked={at === base}
              onChange={() => onBase(run.run_id)}
              aria-label={`${run.run_id} is the baseline`}
            />
            baseline
          </label>
          {runs.length > 2 ? (
            <button type="button" aria-label={`Remove ${run.run_id}`} title="Remove it" onClick={() => onRemove(run.run_id)}>
              <Icon name="close" size={14} />
            </button>
          ) : null}
        </li>
      ))}
    </ul>
  );
}
