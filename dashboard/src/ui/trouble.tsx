import { Icon } from "./icon";
import styles from "./trouble.module.css";

interface Props {
  detail: string;
  remedy?: string | null | undefined;
}

/** What went wrong, and what to do. */
export function Trouble({ detail, remedy }: Props) {
  return (
    <div className={styles.trouble} role="alert">
      <Icon name="alert" />
      <div>
        <p>{detail}</p>
        {remedy ? <p className={styles.remedy}>{remedy}</p> : null}
      </div>
    </div>
  );
}
