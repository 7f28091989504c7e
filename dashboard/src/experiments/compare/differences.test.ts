import { expect, test } from "vitest";

import { linesOf, outcomesOf } from "./differences";

const row = (name: string, values: unknown[], missing = values.map(() => false)) => ({ name, values, missing });

test("only what differs is a line, each value held against the baseline's", () => {
  const rows = [
    row("lr", [0.1, 0.2, 0.1]),
    row("seed", [1, 1, 1]),
    row("warmup", [null, 5, null], [true, false, false]),
  ];

  expect(linesOf(rows, 0)).toEqual([
    {
      name: "lr",
      cells: [
        { text: "0.1", kind: "base" },
        { text: "0.2", kind: "other" },
        { text: "0.1", kind: "same" },
      ],
    },
    {
      name: "warmup",
      cells: [
        { text: "not set", kind: "missing" },
        { text: "5", kind: "other" },
        { text: "–", kind: "other" },
      ],
    },
  ]);
});

test("a result has its distance from the baseline, and which is the best", () => {
  const loss = { name: "loss", goal: "min" as const, last: [0.5, 0.4, null], best: [0.5, 0.3, null], best_step: [9, 7, null], winner: 1 };

  expect(outcomesOf([loss, { ...loss, name: "loom/cpu" }], 0)).toEqual([
    {
      name: "loss",
      cells: [
        { text: "0.5 (best 0.5 at 9)", kind: "base", against: "", isBest: false },
        { text: "0.4 (best 0.3 at 7)", kind: "other", against: "−20 %", isBest: true },
        { text: "not logged", kind: "missing" },
      ],
    },
  ]);
});
