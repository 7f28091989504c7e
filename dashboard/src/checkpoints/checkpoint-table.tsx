import type { Check, Checkpoint } from "../api/wire";
import { CheckpointLine } from "./checkpoint-line";
import styles from "./checkpoint-table.module.css";
import { keyOf } from "./standing";

const HEADS = ["Step", "State", "Size", "Duration", "Age", "Reason", "Metrics, place", ""];

interface Props {
  items: readonly Checkpoint[];
  checks: ReadonlyMap<number, Check>;
  mayVerify: boolean;
  mayResume: boolean;
  onVerify: (step: number) => void;
  onResume: (step: number) => void;
}

/** Every checkpoint, the newest first. */
export function CheckpointTable({ items, checks, ...more }: Props) {
  return (
    <table className={styles.table}>
      <thead>
        <tr>
          {HEADS.map((head) => (
            <th key={head} scope="col">
              {head}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {items.map((saved) => (
          <CheckpointLine key={keyOf(saved)} saved={saved} check={checks.get(saved.step)} {...more} />
        ))}
      </tbody>
    </table>
  );
}
