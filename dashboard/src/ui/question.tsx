import type { ReactNode, SubmitEvent } from "react";

import { Button } from "./button";
import { Foot } from "./foot";
import styles from "./question.module.css";
import { Trouble } from "./trouble";

interface Props {
  about: ReactNode;
  /** What the button that does it says. */
  done: string;
  /** What the one that does nothing says. */
  dismiss?: string;
  isGrave?: boolean | undefined;
  isReady: boolean;
  isBusy: boolean;
  problem?: { detail: string; remedy?: string | null } | null;
  onConfirm: () => void;
  onClose: () => void;
  children: ReactNode;
}

/** What a dialog asks: what it is about, fields, what came of a try, and the two ways out. */
export function Question({ about, done, dismiss = "Cancel", isGrave, isReady, isBusy, problem, onConfirm, onClose, children }: Props) {
  const confirm = (event: SubmitEvent) => {
    event.preventDefault();
    if (isReady && !isBusy) onConfirm();
  };
  return (
    <form className={styles.form} onSubmit={confirm}>
      <p className={styles.about}>{about}</p>
      {children}
      {problem ? <Trouble detail={problem.detail} remedy={problem.remedy} /> : null}
      <Foot>
        <Button onClick={onClose}>{dismiss}</Button>
        <Button type="submit" tone={isGrave ? "danger" : "main"} data-testid="confirm" disabled={!isReady || isBusy}>
          {isBusy ? "Asking" : done}
        </Button>
      </Foot>
    </form>
  );
}
