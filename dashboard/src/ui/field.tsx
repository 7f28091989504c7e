import { useId, type InputHTMLAttributes, type ReactNode } from "react";

import styles from "./field.module.css";

interface Props extends Omit<InputHTMLAttributes<HTMLInputElement>, "id"> {
  label: string;
  hint?: ReactNode;
  wrong?: string | null;
}

/** A labelled line to type into; what is wrong with it stands below. */
export function Field({ label, hint, wrong, ...input }: Props) {
  const id = useId();
  return (
    <div className={styles.field}>
      <label htmlFor={id}>{label}</label>
      <input {...input} id={id} aria-invalid={Boolean(wrong)} aria-describedby={`${id}-hint`} />
      <p id={`${id}-hint`} className={wrong ? styles.wrong : styles.hint}>
        {wrong ?? hint}
      </p>
    </div>
  );
}
