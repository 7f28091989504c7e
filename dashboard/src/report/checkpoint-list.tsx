import type { Checkpoint } from "../api/wire";
import { CheckpointState } from "../checkpoints/checkpoint-state";
import { keyOf } from "../checkpoints/standing";
import { bytes, date, NOTHING, span, whole } from "../ui/format";
import { TableHead } from "../ui/table-head";
import styles from "./report-table.module.css";

const HEADS = ["Step", "State", "Size", "Took", "When", "Why"];

/** What was saved, the newest first. */
export function CheckpointList({ items }: { items: readonly Checkpoint[] }) {
  return (
    <div className={styles.scroll}>
      <table className={styles.table} aria-label="Checkpoints">
        <TableHead heads={HEADS} />
        <tbody>
          {items.map((saved) => (
            <tr key={keyOf(saved)} data-testid="checkpoint" data-step={saved.step}>
              <th scope="row">{whole(saved.step)}</th>
              <td>
                <CheckpointState state={saved.state} />
              </td>
              <td>{saved.bytes ? bytes(saved.bytes) : NOTHING}</td>
              <td>{span(saved.seconds)}</td>
              <td>{date(saved.committed_at ?? saved.created_at ?? "")}</td>
              <td>{[saved.trigger, saved.reason].filter(Boolean).join(": ") || NOTHING}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
