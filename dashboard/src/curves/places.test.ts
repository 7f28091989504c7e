import { expect, test } from "vitest";

import type { Curve, Entry } from "../api/wire";
import { nearest } from "../charts/data/words";
import { between, peakNear, placeOf } from "./places";

const curve = {
  steps: [10, 20, 30, 40, 50],
  times: [100, 110, 130, 140, 150],
  min: [1, 1, 1, 1, 1],
  max: [1.1, 1.2, 9, 1.1, 1.0],
  nans: [0, 0, 0, 0, 0],
} as unknown as Curve;
const entry = (step: number | null, seconds: number) =>
  ({ step, time: new Date(seconds * 1000).toISOString() }) as Entry;

test("an entry stands at its step, or where the run was at its time", () => {
  expect(placeOf(entry(17, 0), "step", curve)).toBe(17);
  expect(placeOf(entry(null, 120), "step", curve)).toBe(25);
  expect(placeOf(entry(null, 120), "step", undefined)).toBeNull();
  expect(placeOf(entry(17, 120), "time", curve)).toBe(120);
});

test("before the beginning and behind the end the ends hold", () => {
  expect([between(0, curve.times, curve.steps), between(999, curve.times, curve.steps)]).toEqual([10, 50]);
});

test("a click beside a spike means the spike", () => {
  expect(nearest(38, curve.steps)).toBe(3);
  expect(peakNear(curve, 3, 2)).toBe(2);
  expect(peakNear(curve, 4, 1)).toBe(3);
});

test("a click on a wide spike means its top, and not where it ends", () => {
  const max = [1, 1, 1, 8, 9, 8, 1, 1, 1, 1];
  const wide = { ...curve, max, min: max, nans: max.map(() => 0) };
  expect(peakNear(wide, 5, 2)).toBe(4);
});

test("a value that is no number stands out most", () => {
  expect(peakNear({ ...curve, nans: [0, 0, 0, 0, 1] }, 3, 2)).toBe(4);
});
