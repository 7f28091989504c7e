import { expect, test } from "vitest";

import { logRange, logSplits } from "./log-axis";

test("an axis goes from a power of ten to another, also around one value", () => {
  expect(logRange(0.003, 42)).toEqual([0.001, 100]);
  expect(logRange(1, 1)).toEqual([1, 10]);
});

test("some powers of ten are named, and parts of them where there are few", () => {
  expect(logSplits(0.1, 10)).toEqual([0.1, 0.2, 0.5, 1, 2, 5, 10]);
  expect(logSplits(1e-4, 1)).toEqual([1e-4, 1e-3, 1e-2, 1e-1, 1]);
  expect(logSplits(1e-24, 1)).toEqual([1e-24, 1e-21, 1e-18, 1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 1]);
});

test("however small a value gets, names stay few", () => {
  const [min, max] = logRange(5e-324, 0.5);

  expect([min, max]).toEqual([1e-300, 1]);
  expect(logSplits(min, max).length).toBeLessThanOrEqual(9);
});
