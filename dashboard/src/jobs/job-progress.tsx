import type { JobRow } from "../api/wire";
import { percent, whole } from "../ui/format";
import { ProgressBar } from "../ui/progress-bar";
import styles from "./job-progress.module.css";

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
export function JobProgress({ job }: { job: JobRow }) {
  if (job.state === "QUEUED") {
    const place = job.queue_position === null ? "Waits" : `No. ${job.queue_position} in the queue`;
    return (
      <div className={styles.queue} data-testid="queue-position">
        <p>{place}</p>
        <p title={job.reason}>{job.reason}</p>
      </div>
    );
  }
  const part = job.state === "COMPLETED" ? 1 : job.progress;
  return (
    <div className={styles.progress}>
      {part === null ? null : <ProgressBar part={part} tone={TONES[job.state]} label="Progress" />}
      <p className="number">
        <span data-testid="job-step">{job.step === null ? "no step yet" : `step ${whole(job.step)}`}</span>
        {job.total_steps === null ? "" : ` of ${whole(job.total_steps)}`}
        {part === null ? null : <span>{percent(part)}</span>}
      </p>
    </div>
  );
}
