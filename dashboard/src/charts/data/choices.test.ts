import { expect, test } from "vitest";

import { metricOf, smoothingOf } from "./choices";

test("the loss is shown unless something else is chosen", () => {
  expect(metricOf(["acc", "loss", "train/loss"], "")).toBe("loss");
  expect(metricOf(["acc", "train/loss"], "")).toBe("train/loss");
  expect(metricOf(["acc", "lossless"], "")).toBe("acc");
  expect(metricOf(["acc", "loss"], "acc")).toBe("acc");
  expect(metricOf([], "")).toBe("");
});

test("a weight that makes no sense is none", () => {
  expect(["", "0.6", "2", "-1", "x"].map(smoothingOf)).toEqual([0, 0.6, 0.999, 0, 0]);
});
