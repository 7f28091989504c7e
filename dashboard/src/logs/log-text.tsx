import { partsOf } from "./ansi";
import styles from "./log-text.module.css";

/** What was printed, in the colours it was printed in. */
export function LogText({ text }: { text: string }) {
  return (
    <span className={styles.text}>
      {partsOf(text).map((part, at) =>
        part.colour || part.isBold ? (
          <span key={at} data-colour={part.colour} data-bold={part.isBold}>
            {part.text}
          </span>
        ) : (
          part.text
        ),
      )}
    </span>
  );
}
