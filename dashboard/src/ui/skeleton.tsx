import styles from "./skeleton.module.css";

/** The place of something that is on its way, as large as it will be. */
export function Skeleton({ height = 14, width = "100%" }: { height?: number | string; width?: number | string }) {
  return <span className={styles.skeleton} style={{ height, width }} aria-hidden="true" />;
}
