import { expect, test } from "vitest";

import type { Shown } from "./heat-look";
import { slowOf } from "./slow";

const shown = (...lines: (number | null)[][]): Shown => ({
  start: 0,
  lines: lines.map((values, rank) => ({ rank, role: "t", values })),
});

test("who takes longer than the others is named with the time since when, the slowest first", () => {
  const found = slowOf(shown([1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [1, 2, 2, 2, 2], [1, 1, 3, 3, 3], [1, 1, 1, 1, 1]));

  expect(found).toEqual([
    { rank: 3, role: "t", since: 2, times: 3 },
    { rank: 2, role: "t", since: 1, times: 2 },
  ]);
});

test("none is slow where all are, and a short or past delay does not count", () => {
  expect(slowOf(shown([1, 1, 5, 5, 5], [1, 1, 5, 5, 5]))).toEqual([]);
  expect(slowOf(shown([1, 1, 1, 1, 1], [1, 1, 1, 1, 9]))).toEqual([]);
  expect(slowOf(shown([1, 1, 1, 1, 1], [9, 9, 9, 9, 1]))).toEqual([]);
  expect(slowOf(shown([1, 1, 1, 1, 1, 1], [9, 9, 9, null, null, null]))).toEqual([]);
});

test("of two ranks the slower one is slow, and without ranks none is", () => {
  expect(slowOf(shown([1, 1, 1], [2, 2, 2])).map(({ rank, since }) => [rank, since])).toEqual([[1, 0]]);
  expect(slowOf(shown())).toEqual([]);
});
