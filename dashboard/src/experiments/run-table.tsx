import { useWindowVirtualizer } from "@tanstack/react-virtual";
import { type CSSProperties, useEffect, useEffectEvent } from "react";

import type { ListedRun } from "../api/use-experiments";
import { listed, toggled } from "../charts/data/words";
import { useTop } from "../ui/hooks";
import { StateBadge } from "../ui/indicators";
import { Link, useWord } from "../ui/router";
import { useNow } from "../ui/text/time";
import { isNumber, isSortable, nextSort, textOf, titleOf, widthOf } from "./columns";
import styles from "./run-table.module.css";

const HEIGHT = 44; // of a row, as the style sheet has it
const [GAP, EDGE] = [12, 16]; // pixels between columns and behind the last, as the style sheet has them
const AHEAD = 30; // rows before the end at which more are asked for
const ARROWS = { ascending: " ↑", descending: " ↓", none: "" };

interface Props {
  runs: readonly ListedRun[];
  columns: readonly string[];
  hasMore: boolean;
  onMore: () => void;
}

/** Runs as rows; only those in view are in the page, and more come before one is at the end. */
export function RunTable({ runs, columns, hasMore, onMore }: Props) {
  const [sort, setSort] = useWord("sort");
  const [picked, setPicked] = useWord("pick");
  const [margin, body] = useTop();
  const now = useNow();
  const view = useWindowVirtualizer({
    count: runs.length,
    estimateSize: () => HEIGHT,
    overscan: 12,
    scrollMargin: margin,
    getItemKey: (at) => runs[at]?.run_id ?? at,
  });
  const rows = view.getVirtualItems();
  const isNearEnd = hasMore && (rows.at(-1)?.index ?? 0) >= runs.length - AHEAD;
  const reach = useEffectEvent(onMore);
  useEffect(() => {
    if (isNearEnd) reach();
  }, [isNearEnd, runs.length]);
  const least = columns.reduce((sum, column) => sum + widthOf(column) + GAP, EDGE);
  const widths = {
    "--columns": columns.map((column) => `minmax(${widthOf(column)}px, 1fr)`).join(" "),
    "--least": `${least}px`,
  };
  const chosen = listed(picked);
  return (
    /* eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex -- it is scrolled by keys */
    <div className={styles.scroll} tabIndex={0} role="group" aria-label="Table of runs">
      <div
        className={styles.table}
        style={widths as CSSProperties}
        role="table"
        aria-label="Runs"
        aria-rowcount={hasMore ? -1 : runs.length + 1}
      >
        <div role="row" className={styles.head}>
          {["name", ...columns].map((column) => {
            const order = sort === column ? "ascending" : sort === `-${column}` ? "descending" : "none";
            const title = column === "name" ? "Run" : titleOf(column);
            return (
              <div
                key={column}
                role="columnheader"
                aria-sort={order}
                title={title}
                data-number={isNumber(column) || undefined}
              >
                {isSortable(column) ? (
                  <button type="button" data-column={column} onClick={() => setSort(nextSort(sort, column))}>
                    {title}
                    <span aria-hidden="true">{ARROWS[order]}</span>
                  </button>
                ) : (
                  title
                )}
              </div>
            );
          })}
        </div>
        <div
          ref={body}
          role="rowgroup"
          className={styles.body}
          style={{ height: runs.length * HEIGHT }}
        >
          {rows.map(({ index, key }) => {
            const run = runs[index];
            return run ? (
              <RunLine
                key={key}
                run={run}
                columns={columns}
                now={now}
                top={index * HEIGHT}
                isChosen={chosen.includes(run.run_id)}
                onChoose={() => setPicked(toggled(picked, run.run_id))}
              />
            ) : null;
          })}
        </div>
      </div>
    </div>
  );
}

interface RunLineProps {
  run: ListedRun;
  columns: readonly string[];
  now: number;
  top: number;
  isChosen: boolean;
  onChoose: () => void;
}

/** One run of the table. */
function RunLine({ run, columns, now, top, isChosen, onChoose }: RunLineProps) {
  return (
    <div
      role="row"
      className={styles.row}
      style={{ transform: `translateY(${top}px)` }}
      data-testid="run-row"
      data-run={run.run_id}
      data-chosen={isChosen || undefined}
    >
      <div role="cell" className={styles.name}>
        <input
          type="checkbox"
          aria-label={`Choose ${run.name || run.run_id} (${run.run_id})`}
          checked={isChosen}
          onChange={onChoose}
        />
        <div>
          <Link href={`/jobs/${encodeURIComponent(run.job_id)}`} title={run.name}>
            {run.name || run.run_id}
          </Link>
          <code>{run.run_id}</code>
        </div>
      </div>
      {columns.map((column) => {
        const text = column === "state" ? "" : textOf(run, column, now);
        return (
          <div
            key={column}
            role="cell"
            className={styles.cell}
            data-column={column}
            data-number={isNumber(column) || undefined}
            title={column === "commit" ? (run.commit ?? undefined) : text}
          >
            {column === "state" ? <StateBadge state={run.state} /> : text}
          </div>
        );
      })}
    </div>
  );
}
