import { useEffect, useLayoutEffect, useRef, type ReactNode } from "react";

import styles from "./dialog.module.css";
import { Icon } from "./icon";

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
