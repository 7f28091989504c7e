import type { Entry } from "../api/wire";
import { clock, whole } from "../ui/text/format";
import styles from "./event-line.module.css";

interface Props {
  entry: Entry;
  isOpen: boolean;
  onToggle: () => void;
}

/** One happening; opened, with every fact that was noted. */
export function EventLine({ entry, isOpen, onToggle }: Props) {
  return (
    <>
      <button
        type="button"
        className={styles.line}
        data-testid="event"
        data-kind={entry.kind}
        aria-expanded={isOpen}
        onClick={onToggle}
      >
        <time dateTime={entry.time} title={new Date(entry.time).toLocaleString()}>
          {clock(entry.time)}
        </time>
        <span className="number">{entry.step === null ? "" : whole(entry.step)}</span>
        <span className={styles.kind}>{entry.kind}</span>
        <b>{entry.title}</b>
        <span>{entry.author}</span>
        <span title={entry.reason}>{entry.reason}</span>
        <span className="number">{entry.rank}</span>
      </button>
      {isOpen ? <pre className={styles.facts}>{JSON.stringify(factsOf(entry), null, 2)}</pre> : null}
    </>
  );
}

function factsOf({ what, before, after, command, facts, time }: Entry): Record<string, unknown> {
  const change = before === null && after === null ? {} : { before, after };
  return { what, time, ...change, ...(command ? { command } : {}), ...facts };
}
