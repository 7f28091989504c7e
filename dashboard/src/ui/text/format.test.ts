import { expect, test } from "vitest";

import { age, bytes, number, percent, ranks, rate, shown, span, whole } from "./format";

test("a number has four digits that matter", () => {
  const values = [0, 1.23456, 0.000123456, 123456, 12345678, 1234.567, -2.5, NaN, null];

  expect(values.map(number)).toEqual([
    "0",
    "1.235",
    "1.235e-4",
    "123\u202f456",
    "1.235e7",
    "1234.6",
    "-2.5",
    "–",
    "–",
  ]);
});

test("a duration has its two largest units", () => {
  const values = [0, 0.085, 1.25, 12.7, 60, 250, 11_100, 187_300, Infinity];

  expect(values.map(span)).toEqual([
    "0 ms",
    "85 ms",
    "1.3 s",
    "12 s",
    "1 min",
    "4 min 10 s",
    "3 h 5 min",
    "2 d 4 h",
    "–",
  ]);
});

test("an age has one unit", () => {
  expect([0.4, 7.9, 250, 11_100].map(age)).toEqual(["now", "7 s", "4 min", "3 h"]);
});

test("what is not done is never shown as done", () => {
  expect([0, 0.0512, 0.5, 0.9999, 1].map(percent)).toEqual(["0 %", "5.1 %", "50 %", "99.9 %", "100 %"]);
});

test("ranks are joined to ranges", () => {
  expect(ranks([3, 0, 1, 2, 7, 7])).toBe("0-3,7");
});

test("bytes, rates, counts and values are short", () => {
  expect([bytes(0), bytes(1500), bytes(3.2e9)]).toEqual(["0 B", "1.5 kB", "3.2 GB"]);
  expect([rate(0.5), rate(512.4), rate(25_000), rate(2.5e6)]).toEqual(["0.5", "512", "25 k", "2.5 M"]);
  expect([whole(1234567), shown(0.1 + 0.2), shown("cosine"), shown(true)]).toEqual([
    "1\u202f234\u202f567",
    "0.3",
    "cosine",
    "true",
  ]);
});
