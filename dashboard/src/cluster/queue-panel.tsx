import type { Queued } from "../api/wire";
import { Link } from "../ui/link";
import { Panel } from "../ui/panel";
import styles from "./queue-panel.module.css";

/** Who waits, in the order of their turns, and for what. */
export function QueuePanel({ queue }: { queue: readonly Queued[] }) {
  return (
    <Panel title="Queue">
      {queue.length === 0 ? <p className={styles.soft}>Nobody waits.</p> : null}
      <ol className={styles.list}>
        {queue.map(({ job, owner, position, priority, why }) => (
          <li key={job} data-testid="queued" data-job={job}>
            <b>{position}</b>
            <div>
              <p>
                <Link href={`/jobs/${encodeURIComponent(job)}`}>{job}</Link>{" "}
                <span className={styles.soft}>
                  {owner}
                  {priority ? `, priority ${priority}` : ""}
                </span>
              </p>
              <p className={styles.soft}>{why}</p>
            </div>
          </li>
        ))}
      </ol>
    </Panel>
  );
}
