import type { JobRow } from "../api/wire";
import { ProgressBar, Sparkline, StateBadge } from "../ui/indicators";
import { Link } from "../ui/router";
import { number, percent, rate, span, whole } from "../ui/text/format";
import { Ago } from "../ui/text/time";
import styles from "./job-line.module.css";

const PLAIN = ["RUNNING", "COMPLETED", "QUEUED"]; // states whose reason adds nothing here

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

const TONES = {
  RUNNING: "busy",
  QUEUED: "wait",
  RECOVERING: "odd",
  PAUSED: "warn",
  COMPLETED: "good",
  FAILED: "bad",
  CANCELLED: "wait",
} as const;

/** How far a job is; of one that waits, its place in the queue and what it waits for. */
function JobProgress({ job }: { job: JobRow }) {
  if (job.state === "QUEUED") {
    const place = job.queue_position === null ? "Waiting" : `No. ${job.queue_position} in the queue`;
    return (
      <div className={styles.queue} data-testid="queue-position">
        <p>{place}</p>
        <p title={job.reason}>{job.reason}</p>
      </div>
    );
  }
  const part = job.state === "COMPLETED" ? 1 : job.progress;
  return (
    <div className={styles.jobProgressProgress}>
      {part === null ? null : <ProgressBar part={part} tone={TONES[job.state]} label="Progress" />}
      <p className="number">
        <span data-testid="job-step">{job.step === null ? "no step yet" : `step ${whole(job.step)}`}</span>
        {job.total_steps === null ? "" : ` of ${whole(job.total_steps)}`}
        {part === null ? null : <span>{percent(part)}</span>}
      </p>
    </div>
  );
}
