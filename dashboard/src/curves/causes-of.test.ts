import { expect, test } from "vitest";

import type { Entry } from "../api/wire";
import { causesOf } from "./causes-of";

const entry = (key: string, kind: Entry["kind"], step: number | null, more: Partial<Entry> = {}): Entry => ({
  ...{ key, seq: 0, kind, step, title: key, what: kind, author: "", reason: "", rank: null },
  ...{ before: null, after: null, command: null, facts: {}, is_failure: false, time: new Date((step ?? 0) * 1000).toISOString() },
  ...more,
});
const at = (step: number) => ({ step, time: step });
const keys = (entries: Entry[], step: number) => causesOf(entries, at(step)).map(({ entry: { key } }) => key);

test("what comes after a spike is no cause of it", () => {
  const entries = [entry("before", "knob", 90), entry("same", "knob", 100), entry("after", "knob", 101)];

  expect(keys(entries, 100)).toEqual(["same", "before"]);
});

test("reports of ranks on a change are not listed beside it", () => {
  const echo = ["ready", "decided", "applied"].map((what) => entry(`rank 0: ${what}`, "event", 99, { what }));

  expect(keys([entry("lr", "knob", 99), ...echo], 100)).toEqual(["lr"]);
});

test("a knob that was turned counts more than a checkpoint that was saved nearer", () => {
  const lr = entry("lr", "knob", 80, { before: 0.1, after: 0.3 });

  expect(keys([lr, entry("saved", "checkpoint", 99)], 100)).toEqual(["lr", "saved"]);
});

test("a learning rate a hundred and fifty times as high counts more than a pause just before", () => {
  const lr = entry("lr", "knob", 400, { before: 0.001, after: 0.15 });
  const both = entry("both", "knob", 400, { before: { lr: 0.001, wd: 0.1 }, after: { lr: 0.15, wd: 0.1 } });
  const pause = entry("pause", "command", 899, { title: "pause" });
  const state = entry("paused", "state", 899, { title: "PAUSED" });

  expect(keys([lr, pause, state], 900)[0]).toBe("lr");
  expect(keys([both, pause, state], 900)[0]).toBe("both");
});

test("of two changes of a knob the larger one comes first", () => {
  const small = entry("small", "knob", 90, { before: 0.1, after: 0.11 });
  const large = entry("large", "knob", 90, { before: 0.1, after: 1 });

  expect(keys([small, large], 100)).toEqual(["large", "small"]);
});

test("the nearer of two recoveries comes first, and long ago is little", () => {
  const entries = [entry("old", "recovery", 10), entry("new", "recovery", 900), entry("rank", "rank", 990)];

  expect(keys(entries, 1000)).toEqual(["rank", "new", "old"]);
});

test("going on from a checkpoint is a cause, saving one hardly", () => {
  const restored = entry("restored", "checkpoint", 60, { what: "checkpoint_restored" });

  expect(keys([entry("saved", "checkpoint", 95), restored], 100)).toEqual(["restored", "saved"]);
});

test("a change that was refused is hardly a cause", () => {
  const refused = entry("refused", "knob", 100, { what: "command_refused" });

  expect(keys([refused, entry("saved", "checkpoint", 90)], 100)).toEqual(["saved", "refused"]);
});

test("what has no step is placed by its time", () => {
  const alert = entry("alert", "alert", null, { time: new Date(95_000).toISOString() });
  const later = entry("later", "alert", null, { time: new Date(105_000).toISOString() });

  expect(causesOf([alert, later], at(100))).toMatchObject([{ entry: { key: "alert" }, steps: null, seconds: 5 }]);
});

test("a list of causes is short, and what was long ago is not in it", () => {
  const entries = Array.from({ length: 30 }, (_, step) => entry(`k${step}`, "knob", step));

  expect(keys([entry("begun", "rank", 1)], 5000)).toEqual([]);
  expect(keys(entries, 30)).toEqual(["k29", "k28", "k27", "k26", "k25", "k24", "k23", "k22"]);
});

test("who takes a change back has seen the jump: the change itself comes first", () => {
  const raised = entry("raised", "knob", 72, { title: "lr 0.02 -> 0.5", before: 0.02, after: 0.5 });
  const undone = entry("undone", "knob", 97, { title: "lr 0.5 -> 0.02", before: 0.5, after: 0.02 });
  const other = entry("other", "knob", 97, { title: "wd 0.5 -> 0.02", before: 0.5, after: 0.02 });

  expect(keys([raised, undone], 100)).toEqual(["raised", "undone"]);
  expect(keys([raised, other], 100)).toEqual(["other", "raised"]);
  expect(keys([undone], 100)).toEqual(["undone"]);
});
