import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useMemo, useRef, useState } from "react";

import type { Level, LogLine, LogLine as Line, Values } from "../api/wire";
import { Button } from "../ui/button";
import { Icon } from "../ui/icon";
import { clock, ranks as named, whole } from "../ui/text/format";
import { folded, raised, type TraceRow } from "./fold";
import { FOLLOWING, newSince, scrolled } from "./follow";
import logStyles from "./log-line.module.css";
import styles from "./log-list.module.css";
import { LogText } from "./log-text";

const HEIGHT = 20; // of a line that is not wrapped, as the style sheet has it

interface Props {
  logs: Values["logs"];
  job: string;
}

/** Lines of all ranks; only those in view are in the page. It follows the end until one scrolls up. */
export function LogList({ logs, job }: Props) {
  const scroller = useRef<HTMLDivElement>(null);
  const follow = useRef(FOLLOWING);
  const [held, setHeld] = useState<Values["logs"] | null>(null); // while one reads, nothing moves
  const [opened, setOpened] = useState<ReadonlySet<string>>(new Set());
  const { items, older } = held ?? logs;
  const rows = useMemo(() => folded(items), [items]);
  const view = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => HEIGHT,
    getItemKey: (index) => rows[index]?.key ?? index,
    overscan: 20,
  });
  const tall = view.getTotalSize();
  useEffect(() => {
    const list = scroller.current;
    if (list && !held) list.scrollTop = list.scrollHeight;
  }, [rows, tall, held]);
  const onScroll = ({ scrollTop: top, clientHeight, scrollHeight }: HTMLDivElement) => {
    follow.current = scrolled(follow.current, { top, view: clientHeight, whole: scrollHeight });
    if (follow.current.isFollowing && held) setHeld(null);
    if (!follow.current.isFollowing && !held) setHeld(logs);
  };
  const onFocus = (element: Element) => {
    if (element !== scroller.current && !held) setHeld(logs); // who goes from line to line reads
  };
  const toggle = (key: string) => {
    const next = new Set(opened);
    if (!next.delete(key)) next.add(key);
    setOpened(next);
  };
  const toEnd = () => {
    follow.current = FOLLOWING;
    setHeld(null);
  };
  const fresh = held ? newSince(logs.items, held.items.at(-1)?.key) : 0;
  return (
    <div className={styles.frame}>
      {/* eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex -- it is scrolled by keys */}
      <div ref={scroller} className={styles.list} role="log" aria-live="off" aria-label="Lines" tabIndex={0} data-testid="log-list" data-follow={!held} onScroll={(event) => onScroll(event.currentTarget)} onFocus={(event) => onFocus(event.target)}>
        {older ? (
          <p className={styles.older}>
            Older lines are not shown here. A search finds some of them; <code>loom logs {job}</code> shows all.
          </p>
        ) : null}
        <div className={styles.rows} style={{ height: tall }}>
          {view.getVirtualItems().map(({ index, key, start }) => {
            const row = rows[index];
            return row ? (
              <div key={key} ref={view.measureElement} data-index={index} data-row className={styles.row} style={{ transform: `translateY(${start}px)` }}>
                {row.kind === "line" ? (
                  <LogLine line={row.line} />
                ) : (
                  <LogTrace row={row} isOpen={opened.has(row.key)} onToggle={() => toggle(row.key)} />
                )}
              </div>
            ) : null;
          })}
        </div>
      </div>
      {held ? (
        <Button className={styles.end} tone="main" data-testid="log-end" onClick={toEnd}>
          {fresh ? `${whole(fresh)} new lines` : "To the end"} ↓
        </Button>
      ) : null}
    </div>
  );
}

/** One line that a rank printed. */
function LogLine({ line }: { line: Line }) {
  return (
    <div className={logStyles.line} data-testid="log-line" data-rank={line.rank} data-level={line.level}>
      <LogHead line={line} ranks={[line.rank]} />
      <LogText text={line.message} />
    </div>
  );
}

interface LogTraceProps {
  row: TraceRow;
  isOpen: boolean;
  onToggle: () => void;
}

/** A traceback: what was raised and by which ranks; where, when it is opened. */
function LogTrace({ row, isOpen, onToggle }: LogTraceProps) {
  const [first] = row.lines;
  if (!first) return null;
  return (
    <div className={styles.trace} data-testid="log-trace" data-ranks={row.ranks.join(",")}>
      <button type="button" className={logStyles.line} data-level="error" aria-expanded={isOpen} onClick={onToggle}>
        <LogHead line={first} ranks={row.ranks} />
        <span className={styles.arrow} data-open={isOpen}>
          <Icon name="play" size={10} />
        </span>
        <LogText text={raised(row)} />
        <span className={styles.count}>{row.lines.length} lines</span>
      </button>
      {isOpen ? (
        <pre className={styles.lines}>
          {row.lines.map((line) => (
            <LogText key={line.key} text={`${line.message}\n`} />
          ))}
        </pre>
      ) : null}
    </div>
  );
}

const LETTERS: Record<Level, string> = { debug: "D", info: "I", warning: "W", error: "E", critical: "C" };

/** When a line was printed, by whom, and how grave it is. */
function LogHead({ line, ranks }: { line: LogLine; ranks: readonly number[] }) {
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
