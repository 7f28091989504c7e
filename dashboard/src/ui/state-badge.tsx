import { Icon, type IconName } from "./icon";
import styles from "./state-badge.module.css";

type Look = [tone: string, icon: IconName];

const LOOKS: Record<string, Look> = {
  QUEUED: ["wait", "clock"],
  RUNNING: ["busy", "play"],
  RECOVERING: ["odd", "recovery"],
  PAUSED: ["warn", "pause"],
  COMPLETED: ["good", "check"],
  FAILED: ["bad", "alert"],
  CANCELLED: ["wait", "stop"],
};

/** The state of a job: a word, a shape and a colour. */
export function StateBadge({ state }: { state: string }) {
  const [tone, icon] = LOOKS[state] ?? ["wait", "circle"];
  return (
    <span className={styles.badge} data-tone={tone} data-testid="job-state" data-state={state}>
      <Icon name={icon} size={12} />
      {state.charAt(0) + state.slice(1).toLowerCase()}
    </span>
  );
}
