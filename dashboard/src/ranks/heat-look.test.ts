import { expect, test } from "vitest";

import { cellAt, closed, heightOf, scaleOf, shadeOf, shownOf, SHADES, stretches, type Shown } from "./heat-look";

const none = (count: number) => new Array<null>(count).fill(null);
const shown = (...lines: (number | null)[][]): Shown => ({
  start: 0,
  lines: lines.map((values, rank) => ({ rank, role: "t", values })),
});

test("what is shown begins with the first word of any rank, and is never very short", () => {
  const heat = { name: "n", columns: 40, width: 1, start: 100, left_out: 0 };
  const late = { rank: 0, role: "t", values: [...none(38), 1, 1] };
  const early = { rank: 1, role: "t", values: [...none(5), ...none(34), 1] };

  expect(shownOf({ ...heat, lines: [late] }).start).toBe(120);
  expect(shownOf({ ...heat, lines: [late, { ...early, values: [...none(5), 2, ...none(34)] }] })).toMatchObject({
    start: 105,
    lines: [{ values: { length: 35 } }, { values: { length: 35 } }],
  });
  expect(shownOf({ ...heat, lines: [] })).toEqual({ start: 120, lines: [] });
});

test("a slow step leaves no gap, a silence does", () => {
  expect(closed([1, null, null, 3, null], 1)).toEqual([1, 3, 3, 3, null]);
  expect(closed([1, ...none(20), 3], 1)).toEqual([1, ...none(20), 3]);
  expect(closed([0.1, null, 0.1], 2)).toEqual([0.1, 0.1, 0.1]);
});

test("ranks that are equally fast are cold, and twice as slow is warm", () => {
  const scale = scaleOf(shown([1, 1, 1.02], [1, 1.01, 1]));

  expect(scale).toEqual({ low: 1, high: 2 });
  expect([0.5, 1, 1.5, 2, 99].map((value) => shadeOf(value, scale))).toEqual([0, 0, 16, SHADES - 1, SHADES - 1]);
});

test("one peak does not make all others cold", () => {
  const many = Array.from({ length: 500 }, (_, at) => (at % 10 === 0 ? 3 : 1));

  expect(scaleOf(shown([...many, 1000]))).toEqual({ low: 1, high: 3 });
  expect(scaleOf(shown([null]))).toMatchObject({ low: 0 });
});

test("two ranks are tall, a thousand are thin, and each place is one cell", () => {
  const two = shown([1, 2, 3, 4], [5, 6, 7, 8]);

  expect([2, 32, 1000].map(heightOf)).toEqual([18, 13, 3]);
  expect(cellAt(99, 20, 100, two)).toEqual({ line: 1, column: 3 });
  expect([cellAt(100, 0, 100, two), cellAt(0, 36, 100, two), cellAt(-1, 0, 100, two)]).toEqual([null, null, null]);
});

test("a table has few stretches, and every column is in one of them", () => {
  expect(stretches(10, 3)).toEqual([
    [0, 3],
    [3, 7],
    [7, 10],
  ]);
  expect([stretches(2, 6), stretches(0, 6)]).toEqual([[[0, 1], [1, 2]], []]);
});
