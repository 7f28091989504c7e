import { expect, test } from "vitest";

import type { ListedRun } from "../api/use-experiments";
import type { JobRow } from "../api/wire";
import { livened, newsOf, standing } from "./live-runs";

const loss = { last: 0.5, best: 0.5, best_step: 1 };
const runs = [
  { job_id: "a", state: "RUNNING", step: 1, metrics: { loss } },
  { job_id: "b", state: "COMPLETED", step: 9, metrics: {} },
] as unknown as ListedRun[];
const job = (id: string, state: string, more: object) => ({ id, state, ...more }) as unknown as JobRow;

test("a running run has the step and the loss of now; others are left as they are", () => {
  const times = { started_at: "s", ended_at: null };
  const now = job("a", "PAUSED", { step: 7, spark_name: "loss", loss: 0.25, ...times });
  const [first, second] = livened(runs, [now, job("b", "COMPLETED", { ended_at: "e" })]);

  expect(first).toEqual({
    ...{ job_id: "a", state: "PAUSED", step: 7, ...times },
    metrics: { loss: { ...loss, last: 0.25 } },
  });
  expect(second).toBe(runs[1]);
});

test("news are other states, and other runs", () => {
  expect([newsOf(undefined), newsOf([job("a", "RUNNING", {}), job("b", "FAILED", {})])]).toEqual([
    ...["", "a:RUNNING b:FAILED"],
  ]);
});

test("runs that are compared stand elsewhere with another state and some percent further on", () => {
  const at = (step: number | null) => standing([job("a", "RUNNING", { step }), job("c", "FAILED", {})], ["a", "b"]);

  expect([at(null), at(1234), at(1249), at(1251)]).toEqual(["a:RUNNING:", ...[1200, 1200, 1300].map((n) => `a:RUNNING:${n}`)]);
});
