import { expect, test } from "vitest";

import { ranksOf, toggled, requestOf } from "./filter";

test("ranks are numbers, each once and in order; anything else is left out", () => {
  expect(ranksOf("3,1,x,1,-2,")).toEqual([1, 3]);
});

test("a chip puts its rank in and takes it out", () => {
  expect([toggled("", 2), toggled("2", 0), toggled("0,2", 2)]).toEqual(["2", "0,2", "0"]);
});

test("a filter that is not set is not in the request", () => {
  expect(requestOf("j", "", "", "")).toEqual({ topic: "logs", job: "j", limit: 2000 });
  expect(requestOf("j", "1", "loud", "a")).toEqual({ topic: "logs", job: "j", limit: 2000, ranks: [1], regex: "a" });
  expect(requestOf("j", "", "error", "").level).toBe("error");
});
