import type { ReactNode } from "react";

import styles from "./tools.module.css";

/** Small fields and buttons that say how something is shown. */
export function Tools({ children }: { children: ReactNode }) {
  return <div className={styles.tools}>{children}</div>;
}
