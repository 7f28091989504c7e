import { expect, test } from "vitest";

import { OUTSIDE, routeOf } from "./routes";

test("an address means one page", () => {
  const paths = ["/", "/jobs", "/jobs/a-1", "/jobs/a%2F1/ranks", "/jobs/a/charts", "/jobs/a/knobs", "/jobs/a/nothing", "/else", "/jobs/a/ranks/b"];
  const others = ["/experiments", "/experiments/compare", "/submit", "/submit/x", "/experiments/a"];

  expect(paths.map(routeOf)).toEqual([
    { page: "jobs" },
    { page: "jobs" },
    { page: "job", job: "a-1", tab: "overview" },
    { page: "job", job: "a/1", tab: "ranks" },
    { page: "job", job: "a", tab: "charts" },
    { page: "job", job: "a", tab: "knobs" },
    { page: "none" },
    { page: "none" },
    { page: "none" },
  ]);
  expect(others.map((path) => routeOf(path).page)).toEqual(["experiments", "compare", "submit", "none", "none"]);
});

test("the cluster and the settings are a page each", () => {
  expect(["/cluster", "/settings", "/cluster/a"].map(routeOf)).toEqual([{ page: "cluster" }, { page: "settings" }, { page: "none" }]);
});

test("the manual and the description of the API are links that the server answers, not pages of the dashboard", () => {
  expect(OUTSIDE.map(({ name, href }) => [name, href])).toEqual([
    ["Docs", "/manual/"],
    ["API", "/docs"],
  ]);
  expect(OUTSIDE.map(({ href }) => routeOf(href).page)).toEqual(["none", "none"]);
});
