import { expect, test } from "vitest";

import { fitting } from "./offers";

test("what can be done is found by any words of it", () => {
  const all = [
    { part: "Controls", words: "Stop" },
    { part: "Controls", words: "Change a knob" },
    { part: "Views", words: "Knobs" },
  ];

  expect(fitting(all, "")).toEqual(all);
  expect(fitting(all, "KNOB")).toEqual(all.slice(1));
  expect(fitting(all, "knob control")).toEqual([all[1]]);
  expect(fitting(all, "nothing")).toEqual([]);
});
