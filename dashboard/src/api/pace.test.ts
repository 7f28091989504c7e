import { expect, test } from "vitest";

import { restAfter } from "./pace";

test("a page that renders quickly is updated ten times a second", () => {
  expect([0, 5, 30].map(restAfter)).toEqual([100, 100, 100]);
});

test("a page that takes long has three quarters of the time for its user", () => {
  expect([50, 200].map(restAfter)).toEqual([150, 600]);
});

test("however long it takes, it is updated once a second", () => {
  expect(restAfter(5_000)).toBe(1_000);
});
