import { expect, test } from "vitest";

import { type Begun, press, QUIET } from "./sequence";

const BOUND = ["?", "s", "j", "g j", "g c"];

/** Press keys, each some milliseconds after the one before; return what each has done. */
function pressAll(keys: string, apart = 100): (string | null)[] {
  let begun: Begun = QUIET;
  return keys.split(" ").map((key, at) => {
    const { next, done } = press(begun, key, 1000 + at * apart, BOUND);
    begun = next;
    return done;
  });
}

test("a key that is bound alone does its deed at once", () => {
  expect(pressAll("? s x")).toEqual(["?", "s", null]);
});

test("a sequence does its deed with its last key, and its keys do not do theirs", () => {
  expect(pressAll("g j j")).toEqual([null, "g j", "j"]);
});

test("a sequence that goes nowhere ends, and its last key does nothing", () => {
  expect(pressAll("g s s")).toEqual([null, null, "s"]);
  expect(pressAll("g g c")).toEqual([null, null, "g c"]);
});

test("keys that are long apart are no sequence", () => {
  expect(pressAll("g j", 2000)).toEqual([null, "j"]);
});

test("only keys of a sequence are kept from the browser", () => {
  const first = press(QUIET, "g", 0, BOUND);

  expect(first).toEqual({ next: { keys: "g", since: 0 }, done: null, isTaken: true });
  expect(press(first.next, "x", 10, BOUND)).toEqual({ next: QUIET, done: null, isTaken: true });
  expect(press(QUIET, "x", 10, BOUND)).toEqual({ next: QUIET, done: null, isTaken: false });
});
