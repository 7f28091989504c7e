import { Icon } from "../ui/icon";
import { raised, type TraceRow } from "./fold";
import { LogHead } from "./log-head";
import { LogText } from "./log-text";
import lineStyles from "./log-line.module.css";
import styles from "./log-trace.module.css";

interface Props {
  row: TraceRow;
  isOpen: boolean;
  onToggle: () => void;
}

/** A traceback: what was raised and by which ranks; where, when it is opened. */
export function LogTrace({ row, isOpen, onToggle }: Props) {
  const [first] = row.lines;
  if (!first) return null;
  return (
    <div className={styles.trace} data-testid="log-trace" data-ranks={row.ranks.join(",")}>
      <button type="button" className={lineStyles.line} data-level="error" aria-expanded={isOpen} onClick={onToggle}>
        <LogHead line={first} ranks={row.ranks} />
        <span className={styles.arrow} data-open={isOpen}>
          <Icon name="play" size={10} />
        </span>
        <LogText text={raised(row)} />
        <span className={styles.count}>{row.lines.length} lines</span>
      </button>
      {isOpen ? (
        <pre className={styles.lines}>
          {row.lines.map((line) => (
            <LogText key={line.key} text={`${line.message}\n`} />
          ))}
        </pre>
      ) : null}
    </div>
  );
}
