import styles from "./progress-bar.module.css";

interface Props {
  part: number | null;
  label: string;
  tone?: "busy" | "good" | "wait" | "bad" | "warn" | "odd";
}

/** How much of something is done. */
export function ProgressBar({ part, label, tone = "busy" }: Props) {
  const width = `${Math.min(1, Math.max(0, part ?? 0)) * 100}%`;
  return (
    <span
      className={styles.bar}
      data-tone={tone}
      role="progressbar"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={100}
      {...(part === null ? {} : { "aria-valuenow": Math.round(part * 100) })}
    >
      <span style={{ width }} />
    </span>
  );
}
