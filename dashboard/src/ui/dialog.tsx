import { type ReactNode, type SubmitEvent, useEffect, useLayoutEffect, useRef } from "react";

import { Button } from "./button";
import styles from "./dialog.module.css";
import { Icon } from "./icon";
import { Trouble } from "./panel";
import { CopyLine } from "./text/copy";

interface Props {
  title: string;
  onClose: () => void;
  children: ReactNode;
}

/** A question over the page. Escape and a click outside close it; the focus stays inside, and goes back afterwards. */
export function Dialog({ title, onClose, children }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  // While it is still in the page: the browser then gives the focus back to what had it.
  useLayoutEffect(() => {
    const shown = dialog.current;
    shown?.showModal();
    return () => {
      shown?.close();
      if (document.activeElement === document.body) document.getElementById("main")?.focus();
    };
  }, []);
  useEffect(() => {
    const shown = dialog.current;
    const outside = (event: MouseEvent) => {
      if (event.target === shown) onClose();
    };
    shown?.addEventListener("mousedown", outside);
    return () => shown?.removeEventListener("mousedown", outside);
  }, [onClose]);
  return (
    <dialog
      ref={dialog}
      className={styles.dialog}
      aria-label={title}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
    >
      <div className={styles.inside}>
        <header className={styles.head}>
          <h2>{title}</h2>
          <button type="button" onClick={onClose} aria-label="Close">
            <Icon name="close" />
          </button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

interface QuestionProps {
  about: ReactNode;
  /** The label of the button that confirms. */
  done: string;
  /** The label of the button that cancels. */
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
export function Question({ about, done, dismiss = "Cancel", isGrave, isReady, isBusy, problem, onConfirm, onClose, children }: QuestionProps) {
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
          {isBusy ? "Checking" : done}
        </Button>
      </Foot>
    </form>
  );
}

/** The buttons at the end of a dialog. */
export function Foot({ children }: { children: ReactNode }) {
  return <footer className={styles.foot}>{children}</footer>;
}

interface OutlookProps {
  /** What will happen, a line each; none until it is known. */
  lines: readonly string[];
  warnings?: readonly string[];
  refused?: { detail: string; remedy?: string | null } | null | undefined;
  /** The same in a shell. */
  command?: string | undefined;
  /** The text shown while nothing is known. */
  hint: string;
}

/** What would happen, before anything does; and the command that does the same in a shell. */
export function Outlook({ lines, warnings = [], refused, command, hint }: OutlookProps) {
  return (
    <section className={styles.outlook} aria-label="What will happen" aria-live="polite" data-testid="preview">
      <h3>What will happen</h3>
      {refused ? <Trouble detail={refused.detail} remedy={refused.remedy} /> : null}
      {lines.length === 0 && !refused ? <p className={styles.soft}>{hint}</p> : null}
      {refused ? null : lines.map((line) => <p key={line}>{line}</p>)}
      {warnings.map((warning) => (
        <p key={warning} className={styles.warning}>
          <Icon name="alert" size={14} /> {warning}
        </p>
      ))}
      {command ? <CopyLine text={command} label="Copy the equivalent loom command" /> : null}
    </section>
  );
}
