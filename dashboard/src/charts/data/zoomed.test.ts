import { expect, test } from "vitest";

import type { Curve } from "../../api/wire";
import { bucketsOf, rangeOf, spliced } from "./zoomed";

/** A curve with a bucket from each step of `firsts` up to the next; `last` of it is its last step. */
const curve = (firsts: number[], end: number, rank = 0): Curve => {
  const steps = firsts.map((_, at) => (firsts[at + 1] ?? end + 1) - 1);
  const counts = steps.map((step, at) => step - (firsts[at] ?? step) + 1);
  return {
    ...{ name: "loss", rank, role: "t", steps, first_steps: firsts, times: steps.map((step) => step * 10) },
    ...{ min: firsts, max: steps, last: steps, counts, nans: steps.map(() => 0) },
    ...{ has_replaced: false, replaced: [] },
  };
};
const whole = curve([0, 10, 20, 30], 39);

test("a range that is thinned is asked for, in steps that have all of it", () => {
  expect(rangeOf([whole], "step", [11.4, 24.2])).toEqual({ first: 11, last: 25 });
  expect(rangeOf([whole], "step", null)).toBeNull();
  expect(rangeOf([curve([0, 1, 2, 3], 3)], "step", [1, 2])).toBeNull(); // every point is there
});

test("a range of time is the steps of the buckets that have something of it", () => {
  expect(rangeOf([whole], "time", [100, 200])).toEqual({ first: 10, last: 29 });
  expect(rangeOf([whole], "relative", [40, 140], 60)).toEqual({ first: 10, last: 29 });
  expect(rangeOf([whole], "time", [300, 9999])).toEqual({ first: 30 }); // it may still grow
  expect(rangeOf([whole], "time", [5000, 9999])).toBeNull();
});

test("the fine part stands in the midst of the whole, and no bucket overlaps another", () => {
  const fine = curve([11, 12, 13, 14], 14);

  const [found] = spliced([whole], [fine], { first: 11, last: 14 });

  expect([found?.first_steps, found?.steps]).toEqual([
    [0, 11, 12, 13, 14, 20, 30],
    [9, 11, 12, 13, 14, 29, 39],
  ]);
  expect(found?.times).toEqual([90, 110, 120, 130, 140, 290, 390]);
});

test("what was replaced is finer there, too, and is a reason to ask for a range", () => {
  const older = (one: Curve) => [{ ...one, generation: 1 }];
  const points = curve([0, 1, 2, 3], 3);

  const [found] = spliced(
    [{ ...whole, replaced: older(whole) }],
    [{ ...whole, replaced: older(curve([11, 12], 12)) }],
    { first: 11, last: 12 },
  );

  expect(found?.replaced[0]?.steps).toEqual([9, 11, 12, 29, 39]);
  expect(rangeOf([{ ...points, replaced: older(whole) }], "step", [1, 2])).toEqual({ first: 1, last: 2 });
});

test("a curve of which nothing finer is known stays as it is", () => {
  const other = curve([0, 10], 19, 1);

  expect(spliced([whole, other], [], { first: 3 })).toEqual([whole, other]);
  expect(spliced([whole, other], [curve([3, 4], 4, 7)], { first: 3 })[1]).toBe(other);
});

test("there is a bucket for each pixel, and little resizing asks for no others", () => {
  expect([120, 804, 899, 99_999].map(bucketsOf)).toEqual([300, 900, 900, 5000]);
});
