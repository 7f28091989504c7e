import styles from "./key-caps.module.css";

/** Keys as they look on a keyboard, one after the other. */
export function KeyCaps({ keys }: { keys: string }) {
  return (
    <span className={styles.caps}>
      {keys.split(" ").map((key, at) => (
        <kbd key={at}>{key}</kbd>
      ))}
    </span>
  );
}
