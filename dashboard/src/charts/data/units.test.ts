import { expect, test } from "vitest";

import type { Curve } from "../../api/wire";
import { axisName, inUnit, unitOf } from "./units";

const curve = (name: string) => ({ name, min: [2 ** 20, null], max: [2 ** 21, null], last: [2 ** 21, null], replaced: [] }) as unknown as Curve;

test("an axis has its metric, and its unit where the name reveals it", () => {
  const names = ["loss", "train/loss", "loom/memory", "loom/step_seconds", "io/read_bytes", "memory"];

  expect(names.map(axisName)).toEqual([
    ...["loss", "loss", "memory (MiB)", "step_seconds (s)", "read_bytes (MiB)"],
    "memory", // a metric of the program has no known unit
  ]);
  expect(unitOf("items")).toBe("");
});

test("memory is shown in MiB, and gaps stay gaps", () => {
  expect(inUnit(curve("loom/memory"))).toMatchObject({ min: [1, null], max: [2, null], last: [2, null] });
  expect(inUnit(curve("loss")).last).toEqual([2 ** 21, null]);
  const repeated = { ...curve("loom/memory"), replaced: [curve("")] } as unknown as Curve;
  expect(inUnit(repeated).replaced[0]?.last).toEqual([2, null]);
});
