import type { Entry } from "../api/wire";
import { clock, whole } from "../ui/format";
import { EntryIcon } from "./entry-icon";
import styles from "./entry-list.module.css";

/** What happened, line by line: when, at which step, what, who and why. */
export function EntryList({ entries }: { entries: readonly Entry[] }) {
  return (
    <ol className={styles.list}>
      {entries.map((entry) => (
        <li key={entry.key} data-testid="timeline-entry" data-kind={entry.kind} data-what={entry.what} data-failure={entry.is_failure || undefined}>
          <EntryIcon kind={entry.kind} />
          <span className={styles.title}>
            {entry.rank === null || entry.title.includes("rank") ? "" : `rank ${entry.rank}: `}
            {entry.title}
            {entry.author ? <span> by {entry.author}</span> : null}
            {entry.reason && !entry.title.includes(entry.reason) ? <span>: {entry.reason}</span> : null}
          </span>
          <span className={styles.when}>
            {entry.step === null ? "" : `step ${whole(entry.step)} · `}
            <time dateTime={entry.time} title={new Date(entry.time).toLocaleString()}>
              {clock(entry.time)}
            </time>
          </span>
        </li>
      ))}
    </ol>
  );
}
