import type { ReactNode } from "react";

import styles from "./clock-card.module.css";

const TONES: Record<string, string> = {
  ok: "good",
  RUNNING: "good",
  SUCCEEDED: "good",
  suspect: "warn",
  PENDING: "warn",
  lost: "bad",
  FAILED: "bad",
};

interface Props {
  name: string;
  state: string;
  value: ReactNode;
  detail: string;
  children?: ReactNode;
}

/** One clock: what it says, and how it is. */
export function ClockCard({ name, state, value, detail, children }: Props) {
  return (
    <div className={styles.card} data-testid={`clock-${name.toLowerCase()}`} data-state={state}>
      <p className={styles.name}>
        {name}
        {state ? (
          <span data-tone={TONES[state] ?? "wait"}>
            <i aria-hidden="true" />
            {state.toLowerCase()}
          </span>
        ) : null}
      </p>
      <p className={styles.value}>{value}</p>
      {children}
      <p className={styles.detail} title={detail}>
        {detail}
      </p>
    </div>
  );
}
