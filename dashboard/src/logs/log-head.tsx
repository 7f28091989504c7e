import type { Level, LogLine } from "../api/wire";
import { clock, ranks as named } from "../ui/format";
import styles from "./log-head.module.css";

const LETTERS: Record<Level, string> = { debug: "D", info: "I", warning: "W", error: "E", critical: "C" };

/** When a line was printed, by whom, and how grave it is. */
export function LogHead({ line, ranks }: { line: LogLine; ranks: readonly number[] }) {
  const words = `${ranks.length > 1 ? "ranks" : "rank"} ${named(ranks)}`;
  return (
    <>
      <time className={styles.time} {...(line.time ? { dateTime: line.time, title: full(line.time) } : {})}>
        {line.time ? clock(line.time) : ""}
      </time>
      <span className={styles.rank} title={`${words}, ${line.role}, ${line.stream}`}>
        {ranks.length > 1 ? words : line.rank}
      </span>
      <span className={styles.level} data-level={line.level} title={line.level}>
        {LETTERS[line.level]}
      </span>
    </>
  );
}

function full(time: string): string {
  return new Date(time).toLocaleString();
}
