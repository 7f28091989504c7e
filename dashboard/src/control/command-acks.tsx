import type { CommandAck } from "../api/wire";
import { whole } from "../ui/format";
import styles from "./command-acks.module.css";

/** What each rank has answered so far. */
export function CommandAcks({ acks }: { acks: readonly CommandAck[] }) {
  if (acks.length === 0) return <p className={styles.none}>No rank has answered yet.</p>;
  return (
    <ul className={styles.acks} aria-label="Answers of ranks">
      {acks.map((ack) => (
        <li key={ack.rank} data-testid="ack" data-rank={ack.rank} data-state={ack.state}>
          <b>{ack.rank}</b> {ack.state}
          {ack.step === null ? "" : ` at ${whole(ack.step)}`}
        </li>
      ))}
    </ul>
  );
}
