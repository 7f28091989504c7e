import styles from "./table.module.css";

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

/** The heads of a table's columns. */
export function TableHead({ heads }: { heads: readonly string[] }) {
  return (
    <thead>
      <tr>
        {heads.map((head) => (
          <th key={head} scope="col">
            {head}
          </th>
        ))}
      </tr>
    </thead>
  );
}
