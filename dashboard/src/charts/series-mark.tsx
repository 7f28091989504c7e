import styles from "./series-mark.module.css";

const COLOURS = 6; // of series; further ones begin anew, dashed

/** The colour of a line, as the charts draw it. */
export function SeriesMark({ line }: { line: number }) {
  return (
    <i
      className={styles.mark}
      data-series={(line % COLOURS) + 1}
      data-dashed={line >= COLOURS || undefined}
      aria-hidden="true"
    />
  );
}
