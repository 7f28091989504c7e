import type { LogLine as Line } from "../api/wire";
import { LogHead } from "./log-head";
import { LogText } from "./log-text";
import styles from "./log-line.module.css";

/** One line that a rank printed. */
export function LogLine({ line }: { line: Line }) {
  return (
    <div className={styles.line} data-testid="log-line" data-rank={line.rank} data-level={line.level}>
      <LogHead line={line} ranks={[line.rank]} />
      <LogText text={line.message} />
    </div>
  );
}
