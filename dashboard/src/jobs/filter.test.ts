import { expect, test } from "vitest";

import type { JobRow } from "../api/wire";
import { counted, filtered } from "./filter";

const job = (id: string, state: string, more: Partial<JobRow> = {}) =>
  ({ id, name: id, state, owner: "ada", project: "", reason: "", tags: [], ...more }) as unknown as JobRow;
const jobs = [
  job("gpt-1", "RUNNING", { tags: ["night"] }),
  job("gpt-2", "FAILED", { owner: "bob", reason: "hang_rank_5" }),
  job("mnist-3", "RUNNING"),
];
const ids = (found: JobRow[]) => found.map(({ id }) => id);

test("a filter takes a state and words, each of which must be somewhere", () => {
  expect(ids(filtered(jobs, "", ""))).toEqual(["gpt-1", "gpt-2", "mnist-3"]);
  expect(ids(filtered(jobs, "running", ""))).toEqual(["gpt-1", "mnist-3"]);
  expect(ids(filtered(jobs, "", "GPT bob"))).toEqual(["gpt-2"]);
  expect(ids(filtered(jobs, "", "hang"))).toEqual(["gpt-2"]);
  expect(ids(filtered(jobs, "RUNNING", "night"))).toEqual(["gpt-1"]);
});

test("states are counted over all jobs", () => {
  expect(counted(jobs)).toEqual({ RUNNING: 2, FAILED: 1 });
});
