import { Link } from "../ui/link";
import { StateBadge } from "../ui/state-badge";
import { FoldButton } from "./fold-button";
import styles from "./row.module.css";
import type { JobRow } from "./weave";

/** A job above its ranks. */
export function JobHead({ row: { job, ranks, isOpen }, onTurn }: { row: JobRow; onTurn: () => void }) {
  const name = job.name || job.id;
  return (
    <div className={styles.head}>
      <FoldButton isOpen={isOpen} label={`Ranks of ${name}`} onTurn={onTurn}>
        {name}
      </FoldButton>
      <p className={styles.soft}>
        <Link href={`/jobs/${encodeURIComponent(job.id)}`} aria-label={`Open ${name}`}>
          Open
        </Link>
        <span className={styles.count}>
          {ranks.length} {ranks.length === 1 ? "rank" : "ranks"}
          {job.owner ? `, ${job.owner}` : ""}
        </span>
      </p>
      <span className={styles.tool}>{job.state ? <StateBadge state={job.state} /> : null}</span>
    </div>
  );
}
