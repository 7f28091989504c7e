import { expect, test } from "vitest";

import { sparkPath } from "./indicators";

test("a curve fills its box from edge to edge", () => {
  expect(sparkPath([0, 1, 0.5], 100, 24)).toBe("M0 22L50 2L100 12");
});

test("a value that is no number is a gap", () => {
  expect(sparkPath([0, null, 1], 100, 24)).toBe("M0 22M100 2");
});

test("a curve that does not move lies in the middle, and one point is no curve", () => {
  expect(sparkPath([3, 3], 100, 24)).toBe("M0 12L100 12");
  expect(sparkPath([3, null], 100, 24)).toBe("");
});
