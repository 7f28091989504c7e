import { expect, test } from "vitest";

import { entered, moved } from "./rows";

test("one moves from row to row, from nowhere to an end, and stays at the ends", () => {
  const moves: [count: number, at: number, by: number][] = [[3, -1, 1], [3, -1, -1], [3, 0, 1], [3, 2, 1], [3, 0, -1]];

  expect(moves.map((move) => moved(...move))).toEqual([0, 2, 1, 2, 0]);
});

test("one comes in where one looks, and at an end where no row is in view", () => {
  const [some, none] = [[false, true, true, false], [false, false, false]];

  expect([entered(some, 1), entered(some, -1)]).toEqual([1, 2]);
  expect([entered(none, 1), entered(none, -1)]).toEqual([0, 2]);
});
