import type { ReactNode } from "react";

import styles from "./panel.module.css";

interface Props {
  title: string;
  tools?: ReactNode;
  children: ReactNode;
}

/** A part of a page with a name. */
export function Panel({ title, tools, children }: Props) {
  return (
    <section className={styles.panel} aria-label={title}>
      <header className={styles.head}>
        <h2>{title}</h2>
        {tools}
      </header>
      {children}
    </section>
  );
}
