import { expect, test } from "vitest";

import { FOLLOWING, newSince, scrolled, type Follow } from "./follow";

const view = 100;
const after = (...places: [top: number, whole: number][]): Follow =>
  places.reduce((follow, [top, whole]) => scrolled(follow, { top, view, whole }), FOLLOWING);

test("a list that grows keeps following, also while it is not at its end yet", () => {
  expect(after([400, 500], [400, 900], [600, 900]).isFollowing).toBe(true);
});

test("scrolling up lets go, and what comes does not take hold", () => {
  expect(after([400, 500], [300, 500]).isFollowing).toBe(false);
  expect(after([400, 500], [300, 500], [310, 900]).isFollowing).toBe(false);
});

test("the end takes hold again", () => {
  expect(after([400, 500], [300, 500], [395, 500]).isFollowing).toBe(true);
});

test("lines that came since are counted, all of them when the last one known has gone", () => {
  const keys = ["a", "b", "c"].map((key) => ({ key }));

  expect([newSince(keys, "a"), newSince(keys, "c"), newSince(keys, "gone"), newSince([], undefined)]).toEqual([
    2, 0, 3, 0,
  ]);
});
