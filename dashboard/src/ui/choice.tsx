import { useId } from "react";

import styles from "./field.module.css";

interface Props {
  label: string;
  value: string;
  options: readonly (readonly [value: string, text: string])[];
  wrong?: string | null;
  onChange: (value: string) => void;
}

/** One of several, by its label. */
export function Choice({ label, value, options, wrong, onChange }: Props) {
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
