import type { ReactNode } from "react";

import type { Clocks, JobRow } from "../api/wire";
import { ProgressBar, Sparkline } from "../ui/indicators";
import { number, percent, rate, span, whole } from "../ui/text/format";
import styles from "./job-clocks.module.css";

const LONG = 3; // seconds without a step that are worth a word

/** The three clocks of a job, never mixed, and its numbers. */
export function JobClocks({ job, clocks }: { job: JobRow; clocks: Clocks }) {
  const { process, progress, scheduler } = clocks;
  const total = job.total_steps === null ? "" : ` of ${whole(job.total_steps)}`;
  const left = job.eta_seconds === null ? "" : `${span(job.eta_seconds)} left`;
  const speed = job.throughput === null ? "" : `${rate(job.throughput)} steps/s`;
  const part = job.progress === null ? "" : percent(job.progress);
  const since = (progress.seconds_since ?? 0) >= LONG ? `last step ${span(progress.seconds_since)} ago` : "";
  const detail = progress.state === "ok" ? since : progress.detail;
  const start = `attempt ${job.attempt}, generation ${job.generation}`;
  return (
    <section className={styles.clocks} aria-label="Status">
      <ClockCard name="Process" state={process.state} value={`${process.up} of ${process.total} up`} detail={process.state === "ok" ? start : process.detail} />
      <ClockCard
        name="Progress"
        state={progress.state}
        value={
          <span data-testid="job-step">
            {progress.step === null ? "no step yet" : `step ${whole(progress.step)}${total}`}
          </span>
        }
        detail={[part, left, speed, detail].filter(Boolean).join(" · ")}
      >
        {job.progress === null ? null : <ProgressBar part={job.progress} label="Progress" />}
      </ClockCard>
      <ClockCard name="Scheduler" state={scheduler.state} value={scheduler.engine} detail={scheduler.detail} />
      <ClockCard name={job.spark_name ?? "Loss"} state="" value={number(job.loss)} detail="">
        <Sparkline values={job.spark} label={`Recent ${job.spark_name ?? "loss"}`} />
      </ClockCard>
    </section>
  );
}

const TONES: Record<string, string> = {
  ok: "good",
  RUNNING: "good",
  SUCCEEDED: "good",
  suspect: "warn",
  PENDING: "warn",
  lost: "bad",
  FAILED: "bad",
};

interface Props {
  name: string;
  state: string;
  value: ReactNode;
  detail: string;
  children?: ReactNode;
}

/** One clock: its value and its state. */
function ClockCard({ name, state, value, detail, children }: Props) {
  return (
    <div className={styles.card} data-testid={`clock-${name.toLowerCase()}`} data-state={state}>
      <p className={styles.name}>
        {name}
        {state ? (
          <span data-tone={TONES[state] ?? "wait"}>
            <i aria-hidden="true" />
            {state.toLowerCase()}
          </span>
        ) : null}
      </p>
      <p className={styles.value}>{value}</p>
      {children}
      <p className={styles.detail} title={detail}>
        {detail}
      </p>
    </div>
  );
}
