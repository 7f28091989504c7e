import { useId, type ReactNode, type TextareaHTMLAttributes } from "react";

import styles from "./field.module.css";

interface Props extends Omit<TextareaHTMLAttributes<HTMLTextAreaElement>, "id"> {
  label: string;
  hint?: ReactNode;
  wrong?: string | null;
}

/** A labelled box for several lines; what is wrong with it stands below. */
export function Area({ label, hint, wrong, ...input }: Props) {
  const id = useId();
  return (
    <div className={styles.field}>
      <label htmlFor={id}>{label}</label>
      <textarea {...input} id={id} spellCheck={false} aria-invalid={Boolean(wrong)} aria-describedby={`${id}-hint`} />
      <p id={`${id}-hint`} className={wrong ? styles.wrong : styles.hint}>
        {wrong ?? hint}
      </p>
    </div>
  );
}
