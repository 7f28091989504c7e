import { expect, test } from "vitest";

import type { ListedRun } from "../api/use-experiments";
import { columnsOf, flat, known, nextSort, textOf, titleOf } from "./columns";

const loss = { last: 0.25, best: 0.2, best_step: 3, min: 0.2, max: 1.5 };
const run = (config: Record<string, unknown>, more: Partial<ListedRun> = {}) =>
  ({ config, metrics: { loss, "loom/cpu": loss }, tags: ["a", "b"], owner: "ada", ...more }) as ListedRun;

test("nested values have dotted names, and lists are values", () => {
  expect(flat({ opt: { lr: 0.1, betas: [1, 2] }, none: {} })).toEqual([
    ["opt.lr", 0.1],
    ["opt.betas", [1, 2]],
    ["none", {}],
  ]);
});

test("without a choice the columns are the settings that differ and the results", () => {
  const runs = [run({ lr: 0.1, seed: 1 }), run({ lr: 0.2, seed: 1 })];

  expect(columnsOf("", runs)).toEqual([
    ...["state", "config:lr", "last:loss", "tags", "owner", "duration", "created_at"],
  ]);
  expect(columnsOf("", [...runs, run({})])).toEqual(columnsOf("", runs)); // a run that waits has no config yet
  expect(columnsOf("owner,config:a%2Cb", runs)).toEqual(["owner", "config:a,b"]);
  expect(known(runs)).toEqual({ config: ["lr", "seed"], metrics: ["loom/cpu", "loss"] });
});

test("the learning rate is a column also where all runs have the same, and comes first", () => {
  const config = { a: 1, b: 1, c: 1, d: 1, "opt.lr": 0.1 };
  const runs = [run(config), run({ ...config, a: 2, b: 2, c: 2, d: 2 })];

  expect(columnsOf("", runs).slice(0, 5)).toEqual(["state", "config:opt.lr", "config:a", "config:b", "config:c"]);
  expect(columnsOf("", [run(config)])).toContain("config:opt.lr");
});

test("a cell has the value of the run, or a sign for none", () => {
  const times = { started_at: "2026-01-01T00:00:00Z", ended_at: null, commit: "0123456789", dirty: true };
  const one = run({ opt: { name: "adam" } }, times);
  const now = Date.parse("2026-01-01T00:01:30Z");
  const columns = ["config:opt.name", "config:lr", "last:loss", "max:loss", "min:none", "tags", "duration", "commit"];

  expect(columns.map((column) => textOf(one, column, now))).toEqual([
    ...["adam", "–", "0.25", "1.5", "–", "a, b", "1 min 30 s", "0123456+"],
  ]);
  expect(["state", "config:lr", "last:loss", "max:loss"].map(titleOf)).toEqual(["State", "lr", "loss", "loss, max"]);
});

test("a heading sorts up, then down, then not at all", () => {
  expect([nextSort("", "owner"), nextSort("owner", "owner"), nextSort("-owner", "owner")]).toEqual([
    ...["owner", "-owner", ""],
  ]);
});
