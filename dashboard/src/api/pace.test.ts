import { expect, test } from "vitest";

import { restAfter } from "./pace";

test("a page that shows things quickly is told ten times a second", () => {
  expect([0, 5, 30].map(restAfter)).toEqual([100, 100, 100]);
});

test("a page that takes long has three quarters of the time for whoever uses it", () => {
  expect([50, 200].map(restAfter)).toEqual([150, 600]);
});

test("however long it takes, it is told once a second", () => {
  expect(restAfter(5_000)).toBe(1_000);
});
