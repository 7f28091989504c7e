import { expect, test } from "vitest";

import type { Entry } from "../api/wire";
import { shownOf, withSaves } from "./happened";

const entry = (key: string, what: string, step: number, more: Partial<Entry> = {}): Entry => ({
  ...{ key, seq: 0, kind: "checkpoint", step, title: what.replaceAll("_", " "), what, author: "", reason: "" },
  ...{ rank: null, before: null, after: null, command: null, facts: {}, is_failure: false },
  ...{ time: new Date(step * 1000).toISOString() },
  ...more,
});
const save = (step: number): Entry[] => [
  entry(`a${step}`, "checkpoint_shard", step, { facts: { step } }),
  entry(`b${step}`, "checkpoint_shard", step + 1, { facts: { step } }),
  entry(`c${step}`, "checkpoint_committed", step, { facts: { seconds: 1.5 } }),
  entry(`d${step}`, "checkpoint_removed", step - 300, { author: "loom", reason: "not kept" }),
];
const failed = entry("f", "rank_gone", 150, { kind: "rank", is_failure: true, title: "rank 1 gone" });

test("the lines of a save are one, which has the outcome", () => {
  const lines = withSaves([...save(400), ...save(500)]);

  expect(lines.map(({ key, step, title, author }) => [key, step, title + author])).toEqual([
    ["a400", 400, "checkpoint saved, took 1.5 s, removed that of step 100"],
    ["a500", 500, "checkpoint saved, took 1.5 s, removed that of step 200"],
  ]);
});

test("a save that is under way is not called saved", () => {
  expect(withSaves(save(400).slice(0, 2)).map(({ title }) => title)).toEqual(["checkpoint, 2 written so far"]);
});

test("what fails of a save, and what a person removed, has a line of its own", () => {
  const wrong = entry("w", "checkpoint_failed", 400, { is_failure: true });
  const removed = entry("r", "checkpoint_removed", 100, { author: "ada" });

  expect(withSaves([...save(400).slice(0, 2), wrong, removed]).map(({ key }) => key)).toEqual(["a400", "w", "r"]);
});

test("a failure is shown however many checkpoints came after it", () => {
  const steps = Array.from({ length: 40 }, (_, at) => 200 + at * 100);
  const lines = withSaves([entry("s", "checkpoint_verified", 100), failed, ...steps.flatMap(save)]);

  const shown = shownOf(lines, 12).map(({ key }) => key);

  expect(shown).toHaveLength(13);
  expect([shown[0], shown.at(-1)]).toEqual(["a4100", "f"]);
});
