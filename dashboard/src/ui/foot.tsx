import type { ReactNode } from "react";

import styles from "./foot.module.css";

/** The buttons at the end of a dialog. */
export function Foot({ children }: { children: ReactNode }) {
  return <footer className={styles.foot}>{children}</footer>;
}
