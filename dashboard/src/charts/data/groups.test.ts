import { expect, test } from "vitest";

import { columnsOf, groupsOf, rowsOf } from "./groups";

const metrics = ["train/loss", "loss", "eval/loss", "train/opt/lr", "/odd", "train/acc"];
const all = { words: "", pins: [], folds: [] };

test("metrics are grouped by what stands before the first slash", () => {
  expect(groupsOf(metrics, all)).toEqual([
    { name: "no prefix", metrics: ["/odd", "loss"], isFolded: false },
    { name: "eval", metrics: ["eval/loss"], isFolded: false },
    { name: "train", metrics: ["train/acc", "train/loss", "train/opt/lr"], isFolded: false },
  ]);
});

test("numbers in names count as numbers", () => {
  const [layers] = groupsOf(["l/10/norm", "l/9/norm", "l/1/norm"], all);

  expect(layers?.metrics).toEqual(["l/1/norm", "l/9/norm", "l/10/norm"]);
});

test("what is pinned is first, in the order of pinning, and in its group too", () => {
  const groups = groupsOf(metrics, { ...all, pins: ["train/loss", "gone", "loss"] });

  expect(groups.map(({ name, metrics: its }) => [name, its.length])).toEqual([
    ["pinned", 2],
    ["no prefix", 2],
    ["eval", 1],
    ["train", 3],
  ]);
  expect(groups[0]?.metrics).toEqual(["train/loss", "loss"]);
});

test("a search finds names that have every word, and leaves no empty group", () => {
  expect(groupsOf(metrics, { ...all, words: " LOSS tr ", pins: ["loss"] })).toEqual([
    { name: "train", metrics: ["train/loss"], isFolded: false },
  ]);
});

test("rows have as many charts as fit; a folded group has its head alone", () => {
  const rows = rowsOf(groupsOf(metrics, { ...all, folds: ["eval"] }), 2);

  expect(rows.map((row) => (row.kind === "head" ? row.group.name : row.metrics))).toEqual([
    "no prefix",
    ["/odd", "loss"],
    "eval",
    "train",
    ["train/acc", "train/loss"],
    ["train/opt/lr"],
  ]);
  expect(rows.flatMap((row) => (row.kind === "charts" ? [row.columns] : []))).toEqual([2, 2, 2]);
  expect([100, 800, 812, 5000].map((width) => columnsOf(width, 400, 12, 4))).toEqual([1, 1, 2, 4]);
});

test("a group of fewer charts than fit beside each other fills the page", () => {
  const columns = rowsOf(groupsOf(metrics, all), 4).flatMap((row) => (row.kind === "charts" ? [row.columns] : []));

  expect(columns).toEqual([2, 1, 3]);
});
