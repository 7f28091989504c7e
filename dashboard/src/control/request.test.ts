import { expect, test } from "vitest";

import type { Knob } from "../api/wire";
import { EMPTY, rangeOf, read, valueOf, type Form } from "./request";
import { buttonsOf } from "./verbs";

const lr: Knob = { name: "lr", value: 0.1, type: "float", low: 0, high: 1, ranks: [0, 1] };
const form = (verb: Form["verb"], more: Partial<Form> = {}): Form => ({ ...EMPTY, verb, ...more });

test("a change of a knob has its value as a number, and only the fields that are set", () => {
  const filled = form("set", { knob: "lr", value: " 3e-2 ", at: "500", reason: " flat " });

  expect(read(filled, [lr])).toEqual({
    request: { verb: "set", values: { lr: 0.03 }, at: 500, reason: "flat" },
    wrong: {},
  });
});

test("what is out of range or no number is shown at its field, and nothing is sent", () => {
  expect(read(form("set", { knob: "lr", value: "7", at: "-1" }), [lr])).toEqual({
    request: null,
    wrong: { value: "At most 1.", at: "A whole number, 0 or more." },
  });
});

test("an empty value is not wrong, but nothing to ask for either", () => {
  expect(read(form("set", { knob: "lr" }), [lr])).toEqual({ request: null, wrong: {} });
});

test("another number of ranks is required", () => {
  expect(read(form("resize", {}), [])).toEqual({ request: null, wrong: {} });
  expect(read(form("resize", { workers: "0" }), [])).toEqual({
    request: null,
    wrong: { workers: "A whole number, 1 or more." },
  });
});

test("each verb takes its own words and no others", () => {
  const resume = { from: "200", until: "300", fromScratch: true, unpause: true };
  const all = { at: "9", release: true, workers: "4", ...resume, command: "c1", reason: "r" };

  const asked = (["pause", "resume", "resize", "stop", "checkpoint", "undo", "cancel"] as const).map(
    (verb) => read(form(verb, all), []).request,
  );

  expect(asked).toEqual([
    { verb: "pause", reason: "r", at: 9, release: true },
    { verb: "resume", reason: "r", workers: 4, from_step: 200, until: 300, from_scratch: true, unpause: true },
    { verb: "resize", reason: "r", at: 9, workers: 4 },
    { verb: "stop", reason: "r", at: 9 },
    { verb: "checkpoint", reason: "r", at: 9 },
    { verb: "undo", reason: "r", at: 9, command: "c1" },
    { verb: "cancel", reason: "r" },
  ]);
});

test("values are typed as their knob is", () => {
  const of = (type: Knob["type"], text: string) => valueOf(text, { ...lr, type, low: null, high: null });

  expect([of("int", "12"), of("bool", "True"), of("str", "cosine")]).toEqual([
    { value: 12 },
    { value: true },
    { value: "cosine" },
  ]);
  expect([of("int", "1.5"), of("bool", "yes"), of("float", "")]).toEqual([
    { wrong: "Write a whole number." },
    { wrong: "Write true or false." },
    { wrong: "Write a number, such as 0.03 or 3e-4." },
  ]);
});

test("a knob of any type takes plain values; a list would become a text, and is refused", () => {
  const of = (text: string) => valueOf(text, { ...lr, type: "json", low: null, high: null });

  expect(["3e-4", " true", "cosine", "[1, 2]", '"x"'].map(of)).toEqual([
    { value: 0.0003 },
    { value: true },
    { value: "cosine" },
    { wrong: "Lists and objects are set with: loom set" },
    { value: "x" },
  ]);
});

test("a range has a text", () => {
  expect(rangeOf(lr)).toBe("a number, 0 to 1");
  expect(rangeOf({ ...lr, high: null })).toBe("a number, at least 0");
  expect(rangeOf({ ...lr, type: "bool", low: null, high: null })).toBe("true or false");
});

test("who may do nothing is shown no button, and a stop needs no cancel beside it", () => {
  expect(buttonsOf([])).toEqual([]);
  expect(buttonsOf(["cancel", "stop", "pause", "undo"])).toEqual(["pause", "stop"]);
  expect(buttonsOf(["cancel"])).toEqual(["cancel"]);
});
