import type { ReactNode } from "react";

import styles from "./empty.module.css";

/** Nothing to show, and what one can do about it. */
export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className={styles.empty} data-testid="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}
