import { expect, test } from "vitest";

import type { Curve, Entry } from "../api/wire";
import { lanesOf } from "./lanes";

const entry = (key: string, kind: Entry["kind"], step: number) =>
  ({ key, kind, step, time: "2026-01-01T00:00:00Z" }) as Entry;
const curveOf = (...steps: number[]) => ({ steps, times: steps }) as Curve;
const view = { min: 0, max: 100, left: 50, width: 1000 };

test("marks stand where the chart has their step, and near ones are one", () => {
  const entries = [
    ...[entry("a", "knob", 10), entry("b", "knob", 11), entry("c", "knob", 50)],
    ...[entry("d", "restart", 50), entry("e", "recovery", 200)],
  ];

  const found = lanesOf(entries, "step", curveOf(0, 100, 300), view).map(({ name, marks }) => [
    name,
    marks.map(({ x, entries: its }) => [x, its.map(({ key }) => key).join()]),
  ]);

  expect(found).toEqual([
    ["Knobs", [[100, "a,b"], [500, "c"]]],
    ["Checkpoints", []],
    ["Recoveries", [[500, "d"]]],
    ["Ranks", []],
    ["Other", []],
  ]);
});

test("what lies beyond an end of the curve stands at that end, while it is in view", () => {
  const entries = [entry("early", "knob", -5), entry("now", "knob", 107)];
  const xs = (min: number, max: number) =>
    lanesOf(entries, "step", curveOf(0, 50, 100), { ...view, min, max })[0]?.marks.map(({ key, x }) => [key, x]);

  expect(xs(0, 100)).toEqual([
    ["early", 0],
    ["now", 1000],
  ]);
  expect(xs(20, 80)).toEqual([]);
});
