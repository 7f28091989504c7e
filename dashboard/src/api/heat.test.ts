import { expect, test } from "vitest";

import { heated, type Heat } from "./heat";

const line = (rank: number, values: (number | null)[]) => ({ rank, role: "t", values });
const heat: Heat = {
  ...{ name: "loom/step_seconds", columns: 4, width: 2, start: 100, left_out: 0 },
  lines: [line(0, [1, 2, 3, null]), line(1, [5, null, 5, null])],
};

test("a number goes into the cell of its time, and of one cell the greatest stays", () => {
  const next = heated(heat, [
    [0, "t", 103, 4],
    [0, "t", 103, 3],
    [1, "t", 102, 4],
  ]);

  expect(next).toEqual({ ...heat, lines: [line(0, [1, 2, 3, 4]), line(1, [5, null, 5, null])] });
  expect(heat.lines[0]?.values).toEqual([1, 2, 3, null]);
});

test("behind the end all lines move on together, so that what is below each other is of one time", () => {
  expect(heated(heat, [[1, "t", 105, 9]])).toEqual({
    ...heat,
    start: 102,
    lines: [line(0, [3, null, null, null]), line(1, [5, null, null, 9])],
  });
});

test("after a long silence nothing old is left, and what is older than all is not taken", () => {
  const next = heated(heat, [
    [0, "t", 9000, 7],
    [1, "t", 99, 7],
  ]);

  expect(next).toEqual({
    ...heat,
    start: 8997,
    lines: [line(0, [null, null, null, 7]), line(1, [null, null, null, null])],
  });
});

test("a rank that was not there yet has a line among the others", () => {
  const found = heated({ ...heat, lines: [line(0, [1, 2, 3, 4]), line(10, [1, 2, 3, 4])] }, [[2, "t", 103, 6]]);

  expect(found.lines.map(({ rank, values }) => [rank, values[3]])).toEqual([
    [0, 4],
    [2, 6],
    [10, 4],
  ]);
});
