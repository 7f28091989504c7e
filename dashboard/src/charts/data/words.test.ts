import { expect, test } from "vitest";

import { acrossOf, listed, toggled, zoomOf, zoomWord } from "./words";

test("pins are a list in a word, whatever their names have in them", () => {
  const names = ["train/loss", "a,b", "50%2C", "loss"];
  const word = names.reduce(toggled, "");

  expect(listed(word)).toEqual(names);
  expect(listed(toggled(word, "a,b"))).toEqual(["train/loss", "50%2C", "loss"]);
  expect([listed(""), toggled("loss", "loss")]).toEqual([[], ""]);
});

test("a range is a word and back; what is none is none", () => {
  expect(zoomWord([100.123456, 2000.98765])).toBe("100..2001");
  expect(zoomOf("100..2001")).toEqual([100, 2001]);
  expect(zoomOf(zoomWord([-3.25, 0.5]))).toEqual([-3.25, 0.5]);
  expect(zoomWord(null)).toBe("");
  expect(["", "5", "7..3", "a..b", ".."].map(zoomOf)).toEqual([null, null, null, null, null]);
});

test("an unknown axis is steps", () => {
  expect(["", "time", "relative", "tokens"].map(acrossOf)).toEqual(["step", "time", "relative", "step"]);
});
