import { expect, test } from "vitest";

import { factsOf, packagesOf, variablesOf } from "./facts";

test("what is known is a line, what is not has none", () => {
  const facts = factsOf({
    git: { commit: "abc", branch: "main", dirty: true, remote: "", root: "/src" },
    argv: ["train.py", "--lr", "0.1"],
    python: "3.11.9",
    hardware: { cpu: null, cores: 8, memory_mb: 32_768, nodes: ["a", "b"] },
    notes: [],
  });

  expect(facts).toEqual([
    ["Commit", "abc, with changes that are not committed"],
    ["Branch", "main"],
    ["Command", "train.py --lr 0.1"],
    ["Python", "3.11.9"],
    ["Nodes", "a, b"],
    ["Machine", "8 cores, 32 GiB of memory"],
  ]);
  expect(factsOf({})).toEqual([]);
});

test("packages are found by a part of their names", () => {
  expect(packagesOf({ torchvision: "0.2", numpy: "2", Torch: "1" }, " torch")).toEqual([
    ["Torch", "1"],
    ["torchvision", "0.2"],
  ]);
});

test("variables have their names, and values where these were kept", () => {
  expect(variablesOf({ env: { names: ["HOME", "TZ"], values: { TZ: "UTC" } } })).toEqual([
    ["HOME", "not kept"],
    ["TZ", "UTC"],
  ]);
  expect(variablesOf({})).toEqual([]);
});
