import type { ReactNode } from "react";

import styles from "./filter-bar.module.css";

/** Chips and fields by which a list is made shorter; they go below each other where it is narrow. */
export function FilterBar({ children }: { children: ReactNode }) {
  return (
    <div className={styles.bar} role="search">
      {children}
    </div>
  );
}
