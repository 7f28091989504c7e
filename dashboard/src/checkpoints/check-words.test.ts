import { expect, test } from "vitest";

import type { Check } from "../api/wire";
import { isUnderWay, partOf, wordsOf } from "./check-words";

const check = (more: Partial<Check>): Check => ({
  ...{ id: "7", job: "j", step: 7, state: "running", bytes: 4000, read: 1000, shard: null, reason: "" },
  ...{ author: "ada", asked_at: null, seconds: null },
  ...more,
});

test("progress and outcome have a text", () => {
  const checks = [
    check({ state: "waiting", read: 0 }),
    check({}),
    check({ state: "whole", read: 4000, seconds: 0.25 }),
    check({ state: "damaged", shard: "worker_1.pt", reason: "is missing" }),
    check({ state: "failed", reason: "it was removed meanwhile" }),
  ];

  expect(checks.map(wordsOf)).toEqual([
    "waiting to be read",
    "25 % of 4 kB read",
    "verified: 4 kB hashed in 250 ms",
    "damaged: worker_1.pt: is missing",
    "could not be verified: it was removed meanwhile",
  ]);
  expect(checks.map(isUnderWay)).toEqual([true, true, false, false, false]);
});

test("a checkpoint without a byte is not half read, and none is more than read", () => {
  expect([partOf(check({ bytes: 0, read: 0 })), partOf(check({ read: 9000 }))]).toEqual([0, 1]);
});
