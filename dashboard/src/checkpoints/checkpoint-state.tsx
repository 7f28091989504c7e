import { Icon, type IconName } from "../ui/icon";
import styles from "./checkpoint-state.module.css";
import type { State } from "./standing";

const LOOKS: Record<State, [tone: string, icon: IconName]> = {
  writing: ["busy", "clock"],
  committing: ["busy", "clock"],
  committed: ["good", "check"],
  failed: ["bad", "alert"],
  damaged: ["bad", "alert"],
  removing: ["wait", "close"],
  removed: ["wait", "close"],
};

/** How a checkpoint is: a word, a shape and a colour. */
export function CheckpointState({ state }: { state: State }) {
  const [tone, icon] = LOOKS[state];
  return (
    <span className={styles.state} data-tone={tone}>
      <Icon name={icon} size={13} /> {state}
    </span>
  );
}
