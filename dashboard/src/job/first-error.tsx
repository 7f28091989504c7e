import { Panel } from "../ui/panel";
import styles from "./first-error.module.css";

/** What went wrong first, by time: its rank, its words, its traceback. */
export function FirstError({ error }: { error: Record<string, unknown> }) {
  const { rank, message, traceback, last_lines: last } = error;
  return (
    <Panel title={typeof rank === "number" ? `First error: rank ${rank}` : "First error"}>
      {typeof message === "string" ? <p className={styles.message}>{message}</p> : null}
      {typeof traceback === "string" && traceback ? <pre className={styles.traceback}>{traceback}</pre> : null}
      {typeof last === "string" && last ? (
        <>
          <p className={styles.message}>The last lines of its output:</p>
          <pre className={styles.traceback}>{last}</pre>
        </>
      ) : null}
    </Panel>
  );
}
