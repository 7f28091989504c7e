import type { ReactNode } from "react";

import { Icon } from "../ui/icon";
import styles from "./fold-button.module.css";

interface Props {
  isOpen: boolean;
  label: string;
  onTurn: () => void;
  children: ReactNode;
}

/** The name of a group of rows, which folds them and opens them. */
export function FoldButton({ isOpen, label, onTurn, children }: Props) {
  return (
    <button type="button" className={styles.fold} aria-expanded={isOpen} aria-label={label} onClick={onTurn}>
      <Icon name="back" size={12} />
      <span>{children}</span>
    </button>
  );
}
