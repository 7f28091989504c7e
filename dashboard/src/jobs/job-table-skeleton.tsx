import { Skeleton } from "../ui/skeleton";
import styles from "./job-table-skeleton.module.css";

/** The table before anything of it is known. */
export function JobTableSkeleton() {
  return (
    <div className={styles.table} aria-busy="true" aria-label="Jobs are on their way">
      {[0.7, 0.5, 0.6, 0.4].map((width) => (
        <div key={width} className={styles.row}>
          <Skeleton width={90} height={20} />
          <Skeleton width={`${width * 100}%`} height={16} />
        </div>
      ))}
    </div>
  );
}
