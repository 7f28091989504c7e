import { Panel } from "../ui/panel";
import styles from "./first-error.module.css";

/** What went wrong first, by time: its rank, its words, its traceback. */
export function FirstError({ error }: { error: Record<string, unknown> }) {
  const { rank, message, traceback } = error;
  return (
    <Panel title={typeof rank === "number" ? `First error: rank ${rank}` : "First error"}>
      {typeof message === "string" ? <p className={styles.message}>{message}</p> : null}
      {typeof traceback === "string" && traceback ? <pre className={styles.traceback}>{traceback}</pre> : null}
    </Panel>
  );
}
