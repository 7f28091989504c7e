import { expect, test } from "vitest";

import { partsOf } from "./ansi";

const shown = (message: string) =>
  partsOf(message).map(({ text, colour, isBold }) => [text, colour, isBold ? "bold" : ""]);

test("a line without colours is one part", () => {
  expect(shown("loss [1] 0.5")).toEqual([["loss [1] 0.5", "", ""]]);
});

test("colours begin and end where the program sets them", () => {
  expect(shown("a\u001b[1;31mred\u001b[22mthin\u001b[0m b\u001b[92mc\u001b[m")).toEqual([
    ["a", "", ""],
    ["red", "red", "bold"],
    ["thin", "red", ""],
    [" b", "", ""],
    ["c", "green", ""],
  ]);
});

test("other control sequences are not shown", () => {
  expect(shown("\u001b[2K\u001b]0;title\u0007x\u001b[?25l")).toEqual([["x", "", ""]]);
});
