import type { JobRow } from "../api/wire";
import { Ago } from "../ui/ago";
import { number, rate, span } from "../ui/format";
import { Link } from "../ui/link";
import { Sparkline } from "../ui/sparkline";
import { StateBadge } from "../ui/state-badge";
import { JobProgress } from "./job-progress";
import styles from "./job-line.module.css";

const PLAIN = ["RUNNING", "COMPLETED", "QUEUED"]; // states whose reason says nothing new here

/** One job of the table. */
export function JobLine({ job, top }: { job: JobRow; top: number }) {
  const isOver = job.ended_at !== null;
  const about = PLAIN.includes(job.state) ? [job.project, ...job.tags].filter(Boolean).join(" · ") : job.reason;
  return (
    <div
      role="row"
      className={styles.row}
      style={{ transform: `translateY(${top}px)` }}
      data-testid="job-row"
      data-job={job.id}
    >
      <div role="cell" className={styles.state}>
        <StateBadge state={job.state} />
      </div>
      <div role="cell" className={styles.name}>
        <Link href={`/jobs/${encodeURIComponent(job.id)}`}>{job.name || job.id}</Link>
        <p title={[job.id, job.warning, about].filter(Boolean).join(" ")}>
          {job.warning ? <span className={styles.warning}>{job.warning}</span> : <code>{job.id}</code>} {about}
        </p>
      </div>
      <div role="cell" className={styles.progress}>
        <JobProgress job={job} />
      </div>
      <div role="cell" className={styles.eta}>
        <span className="number">{isOver || job.eta_seconds === null ? "" : span(job.eta_seconds)}</span>
      </div>
      <div role="cell" className={styles.loss}>
        <Sparkline values={job.spark} label={`${job.spark_name ?? "loss"} of ${job.name}`} />
        <span className="number">{job.loss === null ? "" : number(job.loss)}</span>
      </div>
      <div role="cell" className={styles.speed}>
        <span className="number">{isOver || job.throughput === null ? "" : rate(job.throughput)}</span>
      </div>
      <div role="cell" className={styles.owner}>
        {job.owner}
      </div>
      <div role="cell" className={styles.age}>
        <Ago time={job.created_at} />
      </div>
    </div>
  );
}
