import type { Health } from "../api/wire";
import { Icon } from "../ui/icon";
import styles from "./health-mark.module.css";
import { LOOKS } from "./marks";

/** How a device is: a word, a shape and a colour. */
export function HealthMark({ health, count }: { health: Health; count?: number }) {
  return (
    <span className={styles.mark} data-health={health}>
      <Icon name={LOOKS[health].icon} size={12} />
      {count === undefined ? "" : `${count} `}
      {LOOKS[health].word}
    </span>
  );
}
