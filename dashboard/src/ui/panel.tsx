import type { ReactNode } from "react";

import { Icon } from "./icon";
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

/** Nothing to show, and what one can do about it. */
export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className={styles.empty} data-testid="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

interface TroubleProps {
  detail: string;
  remedy?: string | null | undefined;
}

/** What went wrong, and what to do. */
export function Trouble({ detail, remedy }: TroubleProps) {
  return (
    <div className={styles.trouble} role="alert">
      <Icon name="alert" />
      <div>
        <p>{detail}</p>
        {remedy ? <p className={styles.remedy}>{remedy}</p> : null}
      </div>
    </div>
  );
}

/** The place of something that is on its way, as large as it will be. */
export function Skeleton({ height = 14, width = "100%" }: { height?: number | string; width?: number | string }) {
  return <span className={styles.skeleton} style={{ height, width }} aria-hidden="true" />;
}

/** Names and values, a line each. */
export function FactList({ facts }: { facts: readonly (readonly [name: string, value: ReactNode])[] }) {
  return (
    <dl className={styles.list}>
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** Small fields and buttons that set how something is shown. */
export function Tools({ children }: { children: ReactNode }) {
  return <div className={styles.tools}>{children}</div>;
}
