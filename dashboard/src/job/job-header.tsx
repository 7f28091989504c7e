import type { ReactNode } from "react";

import type { JobRow } from "../api/wire";
import { Icon } from "../ui/icon";
import { StateBadge } from "../ui/indicators";
import { Link } from "../ui/router";
import { Ago } from "../ui/text/time";
import styles from "./job-header.module.css";

/** Which job this is, how it is and why, and what may be done. */
export function JobHeader({ job, controls }: { job: JobRow; controls: ReactNode }) {
  const facts: [string, ReactNode][] = [
    ["id", <code key="id">{job.id}</code>],
    ["owner", job.owner],
    ["workers", job.world_size ?? "?"],
    ["submitted", <span key="s"><Ago time={job.created_at} /> ago</span>],
    ...(job.ended_at ? [["ended", <span key="e"><Ago time={job.ended_at} /> ago</span>] as [string, ReactNode]] : []),
  ];
  return (
    <header className={styles.header}>
      <Link href="/jobs" className={styles.back}>
        <Icon name="back" size={14} /> Jobs
      </Link>
      <div className={styles.top}>
        <h1>{job.name || job.id}</h1>
        <StateBadge state={job.state} />
        {job.reason ? (
          <span className={styles.reason} data-testid="job-reason">
            {job.reason}
          </span>
        ) : null}
        {job.warning ? (
          <span className={styles.warning} data-testid="job-warning">
            {job.warning}
          </span>
        ) : null}
        <div className={styles.controls}>{controls}</div>
      </div>
      <dl className={styles.facts}>
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </header>
  );
}
