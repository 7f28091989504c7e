import { sparkPath } from "./spark-path";
import styles from "./sparkline.module.css";

const [WIDTH, HEIGHT] = [120, 28];

/** A curve without axes: which way it goes. */
export function Sparkline({ values, label }: { values: readonly (number | null)[]; label: string }) {
  const path = sparkPath(values, WIDTH, HEIGHT);
  return (
    <svg
      className={styles.spark}
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      preserveAspectRatio="none"
      role="img"
      aria-label={label}
    >
      <path d={path} vectorEffect="non-scaling-stroke" />
    </svg>
  );
}
