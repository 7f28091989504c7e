import { expect, test } from "vitest";

import { appended, heated, merged } from "./merge";
import type { Curve, Entry, Heat, JobRow, Values } from "./wire";

const curve: Curve = {
  name: "loss",
  rank: 0,
  role: "trainer",
  steps: [9, 19],
  first_steps: [0, 10],
  times: [1, 2],
  min: [0.5, 0.4],
  max: [2, 1],
  last: [1, 0.9],
  counts: [10, 10],
  nans: [0, 0],
  has_replaced: false,
  replaced: [],
};
const of = { name: "loss", rank: 0, role: "trainer" };

test("a new point is a bucket of its own behind the others", () => {
  const points = [{ ...of, steps: [20, 21], times: [3, 4], values: [0.8, null] }];

  expect(appended([curve], points)).toEqual([
    {
      ...of,
      steps: [9, 19, 20, 21],
      first_steps: [0, 10, 20, 21],
      times: [1, 2, 3, 4],
      min: [0.5, 0.4, 0.8, null],
      max: [2, 1, 0.8, null],
      last: [1, 0.9, 0.8, null],
      counts: [10, 10, 1, 1],
      nans: [0, 0, 0, 1],
      has_replaced: false,
      replaced: [],
    },
  ]);
});

test("a point that is there already does not come twice", () => {
  const points = [{ ...of, steps: [18, 19, 20], times: [1, 2, 3], values: [5, 5, 0.7] }];

  const [found] = appended([curve], points);

  expect([found?.steps, found?.last]).toEqual([
    [9, 19, 20],
    [1, 0.9, 0.7],
  ]);
  expect(appended([curve], [{ ...of, steps: [19], times: [2], values: [5] }])[0]).toBe(curve);
});

test("a series that begins later appears, and ranks are kept apart", () => {
  const points = [
    { ...of, rank: 1, steps: [3], times: [1], values: [7] },
    { ...of, name: "lr", steps: [4], times: [2], values: [0.1] },
  ];

  const found = appended([curve], points);

  expect(found.map(({ name, rank, last }) => [name, rank, last])).toEqual([
    ["loss", 0, [1, 0.9]],
    ["loss", 1, [7]],
    ["lr", 0, [0.1]],
  ]);
});

const job = (id: string, created_at: string, step = 0) => ({ id, created_at, step }) as JobRow;

test("jobs are put by id, new ones first, and those that are gone leave", () => {
  const value = { items: [job("b", "2026-02"), job("a", "2026-01")] };

  const next = merged("jobs", value, { items: [job("a", "2026-01", 7), job("c", "2026-03")], gone: ["b"] });

  expect(next).toEqual({ items: [job("c", "2026-03"), job("a", "2026-01", 7)] });
});

const entry = (key: string) => ({ key, title: key }) as Entry;

test("a timeline grows at its end, and a delta that is sent twice changes nothing", () => {
  const value = { items: [entry("w1")] };

  const next = merged("timeline", value, { items: [entry("w1"), entry("r1")] });

  expect(next).toEqual({ items: [entry("w1"), entry("r1")] });
  expect(merged("timeline", next, { items: [entry("r1")] })).toBe(next);
});

test("a log grows at its end, and loses its beginning before it is too much", () => {
  const line = (at: number) => ({
    ...{ key: `k${at}`, time: null, rank: 0, role: "trainer", message: String(at) },
    ...{ stream: "stdout" as const, level: "info" as const },
  });
  const lines = (from: number, to: number) => Array.from({ length: to - from }, (_, at) => line(from + at));
  const few = merged("logs", { items: [line(0)], older: false }, { items: [line(1)] });
  const many = merged("logs", few, { items: lines(2, 20_001) });

  expect(few).toEqual({ items: [line(0), line(1)], older: false });
  expect([many.items.length, many.items[0]?.key, many.older]).toEqual([20_000, "k1", true]);
});

test("a timeline that grows for weeks loses its beginning, and no failure of it", () => {
  const entry = (at: number) => ({ key: `k${at}`, is_failure: at === 3 }) as Values["timeline"]["items"][number];
  const fresh = Array.from({ length: 2100 }, (_, at) => entry(at));

  const { items } = merged("timeline", { items: [] }, { items: fresh });

  expect([items.length, items[0]?.key, items[1]?.key, items.at(-1)?.key]).toEqual([2001, "k3", "k100", "k2099"]);
});

test("of the cluster each list takes what is another, and what did not change stays the same", () => {
  const device = (id: string, state: string) => ({ id, state }) as Values["cluster"]["devices"][number];
  const value: Values["cluster"] = {
    nodes: [],
    devices: [device("a", "healthy"), device("b", "healthy")],
    ranks: [],
    jobs: [],
    queue: [],
  };

  const next = merged("cluster", value, { devices: { items: [device("a", "failed"), device("c", "healthy")], gone: ["b"] } });

  expect(next).toEqual({ ...value, devices: [device("a", "failed"), device("c", "healthy")] });
  expect(next.ranks).toBe(value.ranks);
});

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
