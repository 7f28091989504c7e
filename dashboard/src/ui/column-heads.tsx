import styles from "./column-heads.module.css";

/** What the columns are called, above lines that have the same `--columns`; gone where it is narrow. */
export function ColumnHeads({ heads, hidden = false }: { heads: readonly string[]; hidden?: boolean }) {
  return (
    <div className={styles.heads} role={hidden ? undefined : "row"} aria-hidden={hidden || undefined}>
      {heads.map((head) => (
        <div key={head} role={hidden ? undefined : "columnheader"}>
          {head}
        </div>
      ))}
    </div>
  );
}
