import { useState } from "react";

import { copy } from "./copy";
import styles from "./copy-line.module.css";
import { Icon } from "./icon";

/** A line to take elsewhere, with a button that takes it. */
export function CopyLine({ text, label = "Copy" }: { text: string; label?: string }) {
  const [copied, setCopied] = useState("");
  const isCopied = copied === text;
  const take = () => {
    void copy(text).then((isDone) => setCopied(isDone ? text : ""));
  };
  return (
    <div className={styles.line}>
      <code data-testid="copy-text">{text}</code>
      <button type="button" onClick={take} aria-label={isCopied ? `${label}: copied` : label} title={isCopied ? "Copied" : label}>
        <Icon name={isCopied ? "check" : "copy"} />
      </button>
    </div>
  );
}
