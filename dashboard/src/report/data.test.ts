import { expect, test } from "vitest";

import type { JobRow, Points } from "../api/wire";
import { curvesOf, metricsOf, ofRank, ofRuns, since, tookOf, withoutReplaced, type RunData } from "./data";

const points = (name: string, rank: number, values: (number | null)[]): Points => ({
  ...{ name, rank, role: "", values },
  steps: values.map((_, at) => at + 1),
  times: values.map((_, at) => 100 + at),
});
const run = (...series: RunData["series"]) => ({ series }) as RunData;

test("points become buckets of one; buckets stay what they are", () => {
  const bucket = {
    ...{ name: "b", rank: 0, role: "", steps: [9], first_steps: [1], times: [5] },
    ...{ min: [1], max: [3], last: [2], counts: [9], nans: [0] },
    ...{ has_replaced: false, replaced: [] },
  };

  expect(curvesOf(run(points("a", 0, [1, null]), bucket))).toEqual([
    {
      ...{ name: "a", rank: 0, role: "", steps: [1, 2], first_steps: [1, 2], times: [100, 101] },
      ...{ min: [1, null], max: [1, null], last: [1, null], counts: [1, 1], nans: [0, 1] },
      ...{ has_replaced: false, replaced: [] },
    },
    bucket,
  ]);
});

test("what was replaced comes with its points, moves with them, and can be left out", () => {
  const [older] = curvesOf(run(points("a", 0, [5])));
  const replaced = older ? [{ ...older, generation: 1 }] : [];

  const [curve] = curvesOf(run({ ...points("a", 0, [1]), has_replaced: true, replaced }));

  expect(curve?.replaced).toEqual(replaced);
  expect(curve && since(curve, 40).replaced[0]?.times).toEqual([60]);
  expect(curve && withoutReplaced(curve)).toMatchObject({ last: [1], has_replaced: true, replaced: [] });
});

test("a metric is that of the lowest rank, of one, or of all", () => {
  const curves = curvesOf(run(points("a", 3, [1]), points("a", 1, [2]), points("b", 0, [3])));

  const labels = (rank: string) => ofRank(curves, "a", rank).map(({ label }) => label);

  expect([labels(""), labels("3"), labels("all"), labels("7")]).toEqual([
    ...[["rank 1"], ["rank 3"], ["rank 1", "rank 3"], []],
  ]);
});

test("runs lie over each other, each from its own beginning", () => {
  const runs = [curvesOf(run(points("a", 0, [1, 2]))), curvesOf(run(points("b", 0, [3])))];

  expect(metricsOf(runs)).toEqual(["a", "b"]);
  expect(ofRuns(runs, ["x", "y"], "b").map(({ label }) => label)).toEqual(["y"]);
  expect(runs[0]?.map((curve) => since(curve, 100).times)).toEqual([[0, 1]]);
});

test("a running run took until the report was made", () => {
  const job = { started_at: "2026-01-01T00:00:00+00:00", created_at: null, ended_at: null } as JobRow;

  expect(tookOf(job, "2026-01-01T00:01:00+00:00")).toBe(60);
  expect(tookOf({ ...job, ended_at: "2026-01-01T00:00:30+00:00" }, "2026-01-02T00:00:00+00:00")).toBe(30);
  expect(tookOf({ ...job, started_at: null }, "2026-01-02T00:00:00+00:00")).toBe(null);
});
