/** The columns of the job table, and how the address names the sorted column. */

import {
  createColumnHelper,
  getCoreRowModel,
  getSortedRowModel,
  type SortingState,
} from "@tanstack/react-table";

import type { JobRow } from "../api/wire";

const column = createColumnHelper<JobRow>();

export const tableOptions = {
  columns: [
    column.accessor("state", { header: "State" }),
    column.accessor("name", { header: "Job" }),
    column.accessor((job) => job.progress ?? -1, { id: "progress", header: "Progress" }),
    column.accessor((job) => job.eta_seconds ?? Infinity, { id: "eta", header: "ETA" }),
    column.accessor((job) => job.loss ?? Infinity, { id: "loss", header: "Loss" }),
    column.accessor((job) => job.throughput ?? 0, { id: "speed", header: "Steps/s" }),
    column.accessor("owner", { header: "Owner" }),
    column.accessor((job) => -Date.parse(job.created_at ?? ""), { id: "age", header: "Age" }),
  ],
  getCoreRowModel: getCoreRowModel<JobRow>(),
  getSortedRowModel: getSortedRowModel<JobRow>(),
  getRowId: (job: JobRow) => job.id,
  enableSortingRemoval: true,
  autoResetAll: false, // there are no pages: setting them back would draw the table again
};

/** `sort=loss` is upwards, `sort=-loss` downwards; without it the newest come first. */
export function sortingOf(word: string): SortingState {
  if (!word) return [];
  return [{ id: word.replace(/^-/, ""), desc: word.startsWith("-") }];
}

/** Return the word for the next press on a heading: up, down, not at all. */
export function sortWord(id: string, sorted: false | "asc" | "desc"): string {
  return { "": id, asc: `-${id}`, desc: "" }[sorted || ""];
}
