import { useState } from "react";

import { Icon } from "../icon";
import styles from "./copy.module.css";

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

/** Put text into the clipboard; also where a page over plain HTTP is given none. */

export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyByHand(text);
  }
}

/** Copy by selecting the text, as a user would. */
function copyByHand(text: string): boolean {
  const field = document.createElement("textarea");
  field.value = text;
  field.style.position = "fixed";
  field.style.opacity = "0";
  const near = document.activeElement;
  (near?.closest("dialog") ?? document.body).append(field); // a dialog lets nothing outside be marked
  field.select();
  // eslint-disable-next-line @typescript-eslint/no-deprecated -- there is nothing else over plain HTTP
  const isDone = document.execCommand("copy");
  field.remove();
  if (near instanceof HTMLElement) near.focus();
  return isDone;
}
