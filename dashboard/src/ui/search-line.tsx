import type { ComponentProps } from "react";

import { Icon } from "./icon";
import styles from "./search-line.module.css";

interface Props extends Omit<ComponentProps<"input">, "type" | "className"> {
  label: string;
}

/** A line for words to look for; its label is for those who cannot see the glass. */
export function SearchLine({ label, ...input }: Props) {
  return (
    <label className={styles.line}>
      <Icon name="search" />
      <span className="unseen">{label}</span>
      <input {...input} type="search" />
    </label>
  );
}
