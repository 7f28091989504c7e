import { expect, test } from "vitest";

import type { Curve } from "../../api/wire";
import { bucketRows } from "./bucket-rows";

const CURVE: Curve = {
  ...{ name: "loss", role: "t", rank: 1, first_steps: [1, 11], steps: [10, 20], times: [100, 200] },
  ...{ last: [3, null], min: [2, null], max: [5, null], counts: [10, 10], nans: [0, 10] },
  ...{ has_replaced: false, replaced: [] },
};
const ROWS = [
  { key: "t 1 20", rank: 1, replaced: null, first: 11, step: 20, time: 200, last: null, min: null, max: null, count: 10, nans: 10 },
  { key: "t 1 10", rank: 1, replaced: null, first: 1, step: 10, time: 100, last: 3, min: 2, max: 5, count: 10, nans: 0 },
];

test("a row has what its bucket has, and the newest is the first", () => {
  expect(bucketRows([CURVE], "step")).toEqual(ROWS);
});

test("rows of several ranks stand by step, then by rank", () => {
  const found = bucketRows([CURVE, { ...CURVE, rank: 0 }], "step");

  expect(found.map(({ step, rank }) => [step, rank])).toEqual([[20, 0], [20, 1], [10, 0], [10, 1]]);
});

test("what was replaced stands behind what is shown, the last generation first", () => {
  const older = (generation: number) => ({ ...CURVE, generation, steps: [10], first_steps: [1] });

  const found = bucketRows([{ ...CURVE, replaced: [older(1), older(2)] }], "step");

  expect(found.map(({ step, replaced }) => [step, replaced])).toEqual([[20, null], [10, null], [10, 2], [10, 1]]);
  expect(new Set(found.map(({ key }) => key)).size).toBe(4);
});

test("a range that is zoomed to is of the axis that is shown", () => {
  expect(bucketRows([CURVE], "step", { zoom: [5, 15] })).toEqual(ROWS.slice(1));
  expect(bucketRows([CURVE], "time", { zoom: [150, 250] })).toEqual(ROWS.slice(0, 1));
  expect(bucketRows([CURVE], "relative", { zoom: [0, 20], start: 90 })).toEqual(ROWS.slice(1));
});
