import { expect, test } from "vitest";

import type { Curve } from "../../api/wire";
import { drawn, overlaid, replacedAt, smoothed } from "./columns";

const curve = (rank: number, steps: number[], last: (number | null)[]): Curve => ({
  ...{ name: "loss", rank, role: "t", steps, first_steps: steps, times: steps.map((at) => at * 10) },
  ...{ last, min: last.map((value) => value && value - 1), max: last.map((value) => value && value + 1) },
  ...{ counts: steps.map(() => 1), nans: steps.map(() => 0) },
  ...{ has_replaced: false, replaced: [] },
});
const repeating = (one: Curve, ...replaced: [generation: number, steps: number[], last: number[]][]): Curve => ({
  ...one,
  has_replaced: true,
  replaced: replaced.map(([generation, steps, last]) => ({ ...curve(0, steps, last), generation })),
});

test("one curve has its line and the band between the least and the greatest", () => {
  expect(drawn([curve(0, [1, 2], [5, 4])], "step", 0)).toEqual({
    xs: [1, 2],
    lines: [[5, 4]],
    raw: null,
    band: [
      [4, 3],
      [6, 5],
    ],
    replaced: [],
  });
});

test("what is smoothed stays visible as it was, and the band hides no peak", () => {
  const found = drawn([curve(0, [1, 2], [4, 8])], "time", 0.5);

  expect(found.xs).toEqual([10, 20]);
  expect(found.lines[0]?.map((value) => Number(value?.toFixed(3)))).toEqual([4, 6.667]);
  expect([found.raw, found.band?.[1]]).toEqual([
    [4, 8],
    [5, 9],
  ]);
});

test("several curves share one axis, with gaps where one has nothing", () => {
  const found = drawn([curve(0, [1, 3], [5, 4]), curve(1, [2, 3], [7, 6])], "step", 0);

  expect(found).toEqual({
    xs: [1, 2, 3],
    lines: [
      [5, null, 4],
      [null, 7, 6],
    ],
    raw: null,
    band: null,
    replaced: [],
  });
});

test("of several curves, too, the line goes through every peak", () => {
  const peaked = { ...curve(0, [4, 6], [1, 2]), first_steps: [1, 5], counts: [4, 2], min: [0, 2], max: [9, 3] };

  const found = drawn([peaked, curve(1, [4], [7])], "step", 0);

  expect(found.xs).toEqual([1, 2.5, 4, 5, 6]);
  expect(found.lines).toEqual([
    [9, 0, 1, 3, 2],
    [null, null, 7, null, null],
  ]);
  expect(drawn([peaked, curve(1, [4], [7])], "step", 0.5).xs).toEqual([4, 6]);
});

test("relative time counts from the start that all charts share", () => {
  const curves = [curve(0, [1, 3], [5, 4]), curve(1, [2], [7])];

  expect(drawn(curves.slice(0, 1), "relative", 0, 4).xs).toEqual([6, 26]);
  expect(drawn(curves, "relative", 0, 4)).toMatchObject({ xs: [6, 16, 26], lines: [[5, null, 4], [null, 7, null]] });
});

test("runs are laid over each other from their own starts, and one without the metric keeps its place", () => {
  const found = overlaid([curve(0, [1, 3], [5, 4]), undefined, curve(0, [4], [7])], "relative", 0, [10, 0, 20]);

  expect(found).toEqual({
    xs: [0, 20],
    lines: [
      [5, 4],
      [null, null],
      [null, 7],
    ],
    raw: null,
    band: null,
    replaced: [],
  });
});

test("what was replaced is a line beside its curve, and neither has a gap where the other has a place", () => {
  const found = drawn([repeating(curve(0, [1, 2, 4], [9, null, 7]), [1, [2, 3], [5, 6]])], "step", 0);

  expect(found.xs).toEqual([1, 2, 3, 4]);
  expect(found.lines).toStrictEqual([[9, null, undefined, 7]]);
  expect(found.band?.[0]).toStrictEqual([8, null, undefined, 6]);
  expect(found.replaced).toStrictEqual([{ of: 0, line: [undefined, 5, 6, undefined] }]);
});

test("what was replaced belongs to the line of its rank, and goes through every peak unless it is smoothed", () => {
  const one = repeating(curve(1, [4], [2]), [3, [4], [1]]);
  const [older] = one.replaced;
  const wide = { ...one, replaced: older ? [{ ...older, first_steps: [1], counts: [4], min: [0], max: [9] }] : [] };

  const found = drawn([curve(0, [4], [7]), wide], "step", 0);

  expect(found.replaced.map(({ of }) => of)).toEqual([1]);
  expect(found.replaced[0]?.line.filter((value) => value !== undefined)).toEqual([9, 0, 1]);
  expect(drawn([wide], "step", 0.5).replaced[0]?.line).toEqual([1]);
});

test("a step has the value of the last generation that reported it before", () => {
  const { replaced } = repeating(curve(0, [1], [1]), [1, [5, 6], [1, 2]], [4, [6, 7], [3, 4]]);

  expect([5, 6, 8].map((step) => replacedAt(replaced, step))).toEqual([
    ...[{ generation: 1, last: 1 }, { generation: 4, last: 3 }, null],
  ]);
});

test("smoothing leaves gaps alone and a constant as it is", () => {
  expect(smoothed([3, null, 3], 0.9)).toEqual([3, null, 3]);
});
