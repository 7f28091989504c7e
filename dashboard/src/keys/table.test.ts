import { expect, test } from "vitest";

import { keysOf, TABLE } from "./table";

test("no two shortcuts have the same keys, and none begins another", () => {
  const all = TABLE.map(({ keys }) => keys);

  expect(new Set(all).size).toBe(all.length);
  expect(all.filter((one) => all.some((other) => other.startsWith(`${one} `)))).toEqual([]);
});

test("a control knows its keys by what would press it", () => {
  expect(keysOf((selector) => selector.includes('data-verb="stop"'))).toBe("s");
  expect(keysOf(() => false)).toBe("");
});
