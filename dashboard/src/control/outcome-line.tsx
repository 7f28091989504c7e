import { Icon } from "../ui/icon";
import type { Outcome } from "./outcome";
import styles from "./outcome-line.module.css";

const ICONS = { busy: "clock", good: "check", bad: "alert" } as const;

/** How a command stands, in a line. */
export function OutcomeLine({ outcome: { tone, words, more } }: { outcome: Outcome }) {
  return (
    <div className={styles.line} data-tone={tone} role="status">
      <Icon name={ICONS[tone]} />
      <div>
        <p>{words}</p>
        {more ? <p className={styles.more}>{more}</p> : null}
      </div>
    </div>
  );
}
