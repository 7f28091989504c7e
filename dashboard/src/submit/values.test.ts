import { expect, test } from "vitest";

import type { Problem } from "../api/wire";
import { linesOf, mapOf, numberOf, put, rowsOf, unveiled, valueAt, veiled, without, wrongOf } from "./values";

test("a value is put at its path, and what is empty is left out", () => {
  const spec = put({ name: "a" }, "resources.workers", 2);

  expect(spec).toEqual({ name: "a", resources: { workers: 2 } });
  expect(valueAt(spec, "resources.workers")).toBe(2);
  expect(put(spec, "resources.workers", undefined)).toEqual({ name: "a" });
  expect(valueAt(spec, "resources.none.deeper")).toBeUndefined();
});

test("a number that is none is left for the server to refuse", () => {
  expect(["", " ", "1e-3", "2", "two"].map(numberOf)).toEqual([undefined, undefined, 0.001, 2, "two"]);
  expect([linesOf("--lr\n0.1\n"), linesOf("\n")]).toEqual([["--lr", "0.1"], undefined]);
});

test("values of a map are what they look like, and come back as they were", () => {
  const rows = [
    { name: "lr", text: "0.1" },
    { name: "opt", text: "adam" },
    { name: "size", text: '"64"' },
    { name: "betas", text: "[0.9,0.99]" },
    { name: " ", text: "left out" },
  ];
  const value = mapOf(rows, false);

  expect(value).toEqual({ lr: 0.1, opt: "adam", size: "64", betas: [0.9, 0.99] });
  expect(rowsOf(value, false)).toEqual(rows.slice(0, 4));
  expect(mapOf([{ name: "A", text: "1" }], true)).toEqual({ A: "1" });
  expect(mapOf([], false)).toBeUndefined();
});

test("secrets are not shown, are there again when it is sent, and are not taken over", () => {
  const spec = { name: "a", env: { HF_TOKEN: "hf_x", TZ: "UTC" } };
  const shown = { name: "a", env: { HF_TOKEN: "(hidden)", TZ: "UTC" } };

  expect(veiled(spec)).toEqual(shown);
  expect(unveiled(shown, spec)).toEqual(spec);
  expect(without(spec)).toEqual([{ name: "a", env: { TZ: "UTC" } }, ["HF_TOKEN"]]);
  expect(without({ name: "a", env: ["TZ"] })).toEqual([{ name: "a" }, ["TZ"]]);
});

test("what is wrong stands beside its field, or beside the field it is in", () => {
  const problem = { field: "env.A", detail: "d", remedy: "r" } as Problem;

  expect(["env", "env.A", "en", "name"].map((path) => wrongOf(problem, path))).toEqual(["r", "r", null, null]);
  expect(wrongOf({ ...problem, field: "command[0]", remedy: null }, "command")).toBe("d");
  expect(wrongOf(null, "env")).toBeNull();
});
