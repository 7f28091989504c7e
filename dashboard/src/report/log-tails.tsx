import { LogText } from "../logs/log-text";
import { Panel } from "../ui/panel";
import { clock } from "../ui/text/format";
import type { Tail } from "./data";
import styles from "./log-tails.module.css";

/** The last lines of each rank; of several the first is open. */
export function LogTails({ tails, job }: { tails: readonly Tail[]; job: string }) {
  return (
    <Panel title="Last lines of the logs">
      {tails.map(({ rank, role, items, older }, at) => (
        <details key={`${role} ${rank}`} className={styles.tail} open={at === 0} data-testid="log-tail" data-rank={rank}>
          <summary>
            rank {rank}, {role}: {items.length} lines
          </summary>
          {older ? (
            <p>
              Older lines are not here; <code>loom logs {job}</code> shows all.
            </p>
          ) : null}
          <ol className={styles.lines}>
            {items.map((line) => (
              <li key={line.key} data-level={line.level}>
                <time dateTime={line.time ?? undefined}>{line.time ? clock(line.time) : ""}</time>
                <LogText text={line.message} />
              </li>
            ))}
          </ol>
        </details>
      ))}
    </Panel>
  );
}
