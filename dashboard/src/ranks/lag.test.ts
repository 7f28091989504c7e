import { expect, test } from "vitest";

import type { Rank } from "../api/wire";
import { standings } from "./lag";

const rank = (number: number, step: number | null, more: Partial<Rank> = {}) =>
  ({ rank: number, role: "t", step, state: "up", reason: "", step_seconds: 0.1, silent_seconds: 0, ...more }) as Rank;

test("ranks stand by number, each with how far it is behind the first", () => {
  const found = standings([rank(1, 90), rank(0, 100), rank(2, null)]);

  expect(found.map((one) => [one.rank.rank, one.behind, one.look])).toEqual([
    [0, 0, ""],
    [1, 10, ""],
    [2, null, ""],
  ]);
});

test("who is slow, silent or not up is worth a look", () => {
  const found = standings([
    ...[rank(0, 5), rank(1, 5), rank(2, 5, { step_seconds: 0.3 })],
    ...[rank(3, 5, { silent_seconds: 9 }), rank(4, 5, { state: "gone", reason: "exit_signal_9" })],
  ]);

  expect(found.map(({ look }) => look)).toEqual([
    "",
    "",
    "slower than the others",
    "no step for a while",
    "exit_signal_9",
  ]);
});

test("no ranks, no standings", () => {
  expect(standings([])).toEqual([]);
});
