import { date, span } from "../ui/format";
import { StateBadge } from "../ui/state-badge";
import { tookOf, type RunData } from "./data";
import styles from "./report-head.module.css";

/** Which run this is, how it stood and why, whose it is, and when it was. */
export function ReportHead({ run: { job, recorded }, madeAt }: { run: RunData; madeAt: string }) {
  const commit = recorded?.git?.commit;
  const facts: [string, string | number | null | undefined][] = [
    ["id", job.id],
    ["owner", job.owner],
    ["project", job.project],
    ["tags", job.tags.join(", ")],
    ["workers", job.world_size],
    ["submitted", job.created_at && date(job.created_at)],
    ["started", job.started_at && date(job.started_at)],
    [job.ended_at ? "ended" : "as of", date(job.ended_at ?? madeAt)],
    ["took", span(tookOf(job, madeAt))],
    ["commit", commit && commit.slice(0, 12) + (recorded.git?.dirty ? ", changed" : "")],
  ];
  return (
    <header className={styles.head}>
      <div className={styles.top}>
        <h1>{job.name || job.id}</h1>
        <StateBadge state={job.state} />
        {job.reason ? <span data-testid="job-reason">{job.reason}</span> : null}
      </div>
      <dl className={styles.facts} data-testid="facts">
        {facts.map(([name, value]) =>
          value ? (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ) : null,
        )}
      </dl>
    </header>
  );
}
