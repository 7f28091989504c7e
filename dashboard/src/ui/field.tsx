import { type ComponentProps, type InputHTMLAttributes, type ReactNode, type TextareaHTMLAttributes, useId } from "react";

import styles from "./field.module.css";
import { Icon } from "./icon";

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

interface AreaProps extends Omit<TextareaHTMLAttributes<HTMLTextAreaElement>, "id"> {
  label: string;
  hint?: ReactNode;
  wrong?: string | null;
}

/** A labelled box for several lines; what is wrong with it stands below. */
export function Area({ label, hint, wrong, ...input }: AreaProps) {
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

interface ChoiceProps {
  label: string;
  value: string;
  options: readonly (readonly [value: string, text: string])[];
  wrong?: string | null;
  onChange: (value: string) => void;
}

/** One of several, by its label. */
export function Choice({ label, value, options, wrong, onChange }: ChoiceProps) {
  const id = useId();
  return (
    <div className={styles.field}>
      <label htmlFor={id}>{label}</label>
      <select
        id={id}
        value={value}
        aria-invalid={Boolean(wrong)}
        aria-describedby={wrong ? `${id}-wrong` : undefined}
        onChange={(event) => onChange(event.target.value)}
      >
        {options.map(([option, text]) => (
          <option key={option} value={option}>
            {text}
          </option>
        ))}
      </select>
      {wrong ? (
        <p id={`${id}-wrong`} className={styles.wrong}>
          {wrong}
        </p>
      ) : null}
    </div>
  );
}

interface SearchLineProps extends Omit<ComponentProps<"input">, "type" | "className"> {
  label: string;
}

/** A line for words to look for; its label is for those who cannot see the glass. */
export function SearchLine({ label, ...input }: SearchLineProps) {
  return (
    <label className={styles.line}>
      <Icon name="search" />
      <span className="unseen">{label}</span>
      <input {...input} type="search" />
    </label>
  );
}

/** Chips and fields by which a list is made shorter; they go below each other where it is narrow. */
export function FilterBar({ children }: { children: ReactNode }) {
  return (
    <div className={styles.bar} role="search">
      {children}
    </div>
  );
}

/** Buttons of which some are pressed; many of them scroll. */
export function Chips({ label, children }: { label: string; children: ReactNode }) {
  return (
    <div className={styles.chips} role="group" aria-label={label}>
      {children}
    </div>
  );
}
