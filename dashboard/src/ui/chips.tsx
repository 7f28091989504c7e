import type { ReactNode } from "react";

import styles from "./chips.module.css";

/** Buttons of which some are pressed; many of them scroll. */
export function Chips({ label, children }: { label: string; children: ReactNode }) {
  return (
    <div className={styles.chips} role="group" aria-label={label}>
      {children}
    </div>
  );
}
