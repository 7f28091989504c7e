import { Skeleton } from "../ui/panel";
import styles from "./job-clocks.module.css";

/** A job's page before anything of it is known. */
export function JobSkeleton() {
  return (
    <div aria-busy="true" aria-label="Loading the job">
      <Skeleton width={260} height={32} />
      <div style={{ height: 24 }} />
      <div className={styles.clocks}>
        {[1, 2, 3, 4].map((at) => (
          <Skeleton key={at} height={96} />
        ))}
      </div>
      <div style={{ height: 16 }} />
      <Skeleton height={480} />
    </div>
  );
}
