import { expect, test } from "vitest";

import type { Entry } from "../api/wire";
import { counted, fitting } from "./filter";

const entry = (key: string, more: Partial<Entry>): Entry => ({
  ...{ key, seq: 1, time: "2026-01-01T00:00:00Z", step: null, kind: "event", title: key, what: "custom" },
  ...{ author: "", reason: "", rank: null, before: null, after: null, command: null, facts: {}, is_failure: false },
  ...more,
});
const entries = [
  entry("a", { kind: "state", title: "RUNNING" }),
  entry("b", { kind: "knob", title: "lr 0.1 -> 0.02", author: "ada", reason: "too hot", step: 40 }),
  entry("c", { kind: "rank", title: "rank 3 gone", rank: 3 }),
];
const all = { kind: "", words: "", byPeople: false };
const keys = (found: Entry[]) => found.map(({ key }) => key);

test("everything is shown, the newest first", () => {
  expect(keys(fitting(entries, all))).toEqual(["c", "b", "a"]);
});

test("kinds, people and words narrow it", () => {
  expect(keys(fitting(entries, { ...all, kind: "rank" }))).toEqual(["c"]);
  expect(keys(fitting(entries, { ...all, byPeople: true }))).toEqual(["b"]);
  expect(keys(fitting(entries, { ...all, words: "HOT step 40" }))).toEqual(["b"]);
  expect(keys(fitting(entries, { ...all, words: "hot rank" }))).toEqual([]);
});

test("kinds that do not occur are not offered", () => {
  expect(counted(entries)).toEqual([
    ["state", 1],
    ["knob", 1],
    ["rank", 1],
  ]);
});
