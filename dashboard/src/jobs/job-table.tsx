import { useReactTable } from "@tanstack/react-table";
import { useWindowVirtualizer } from "@tanstack/react-virtual";
import { useMemo } from "react";

import type { JobRow } from "../api/wire";
import { useMedia, useTop } from "../ui/hooks";
import { useWord } from "../ui/router";
import { JobLine } from "./job-line";
import styles from "./job-table.module.css";
import { sortingOf, sortWord, tableOptions } from "./table-options";

const [TALL, SHORT] = [124, 60]; // heights of a card and of a row, as the style sheet has them

const ARROWS = { asc: " ↑", desc: " ↓", none: "" };

/** Jobs as rows, or as cards where it is narrow; only those in view are in the page. */
export function JobTable({ jobs }: { jobs: JobRow[] }) {
  const [sort, setSort] = useWord("sort");
  const sorting = useMemo(() => sortingOf(sort), [sort]); // another array would be sorted by anew
  const table = useReactTable({ ...tableOptions, data: jobs, state: { sorting } });
  const rows = table.getRowModel().rows;
  const [margin, body] = useTop();
  const height = useMedia("(max-width: 760px)") ? TALL : SHORT;
  const view = useWindowVirtualizer({
    count: rows.length,
    estimateSize: () => height,
    overscan: 10,
    scrollMargin: margin,
    getItemKey: (at) => rows[at]?.id ?? at,
  });
  return (
    <div className={styles.table} role="table" aria-label="Jobs" aria-rowcount={rows.length + 1}>
      <div role="row" className={styles.head}>
        {table.getFlatHeaders().map(({ column }) => (
          <div key={column.id} role="columnheader" aria-sort={ariaSort(column.getIsSorted())}>
            <button type="button" onClick={() => setSort(sortWord(column.id, column.getIsSorted()))}>
              {String(column.columnDef.header)}
              <span aria-hidden="true">{ARROWS[column.getIsSorted() || "none"]}</span>
            </button>
          </div>
        ))}
      </div>
      <div ref={body} role="rowgroup" className={styles.body} style={{ height: rows.length * height }}>
        {view.getVirtualItems().map(({ index, key }) => {
          const job = rows[index]?.original;
          return job ? <JobLine key={key} job={job} top={index * height} /> : null;
        })}
      </div>
    </div>
  );
}

function ariaSort(sorted: false | "asc" | "desc"): "none" | "ascending" | "descending" {
  return sorted ? (sorted === "asc" ? "ascending" : "descending") : "none";
}
