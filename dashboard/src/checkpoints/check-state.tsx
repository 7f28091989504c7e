import type { Check } from "../api/wire";
import { ProgressBar } from "../ui/progress-bar";
import styles from "./check-state.module.css";
import { isUnderWay, partOf, wordsOf } from "./check-words";

/** How a checkpoint that is read and hashed stands. */
export function CheckState({ check }: { check: Check }) {
  return (
    <div className={styles.check} role="status" data-testid="check" data-step={check.step} data-state={check.state}>
      {isUnderWay(check) ? <ProgressBar part={partOf(check)} label={`Reading the checkpoint of step ${check.step}`} /> : null}
      <p>{wordsOf(check)}</p>
    </div>
  );
}
