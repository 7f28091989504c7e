import type { Checkpoint } from "../api/wire";
import { whole } from "../ui/text/format";
import styles from "./checkpoint-strip.module.css";
import { marksOf } from "./standing";

/** Checkpoints along the steps: what there is, what has gone, what is broken. */
export function CheckpointStrip({ items }: { items: readonly Checkpoint[] }) {
  const marks = marksOf(items);
  const [first, last] = [marks[0], marks.at(-1)];
  return (
    <div className={styles.strip}>
      <ol className={styles.marks} aria-label="Checkpoints by step">
        {marks.map(({ key, step, state, place }) => (
          <li key={key} data-state={state} style={{ left: `${place * 100}%` }} title={`step ${whole(step)}, ${state}`}>
            <span className="unseen">
              step {step}, {state}
            </span>
          </li>
        ))}
      </ol>
      <p className={styles.ends}>
        <span>step {whole(first?.step)}</span>
        <span>step {whole(last?.step)}</span>
      </p>
    </div>
  );
}
