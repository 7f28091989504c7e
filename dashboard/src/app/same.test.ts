import { expect, test } from "vitest";

import { routeOf } from "./routes";
import { sameOf } from "./same";

const same = (address: string) => {
  const { pathname, searchParams } = new URL(address, "http://plane");
  return sameOf(routeOf(pathname), searchParams);
};

test("every view of jobs has a command that shows the same", () => {
  const views = ["/", "/jobs/a", "/jobs/a/charts", "/jobs/a/knobs", "/jobs/a/ranks", "/jobs/a/logs", "/jobs/a/checkpoints", "/jobs/a/events", "/jobs/a/spec", "/else"];

  expect(views.map(same)).toEqual([
    "loom ls",
    "loom plot a",
    "loom plot a",
    "loom set a",
    "loom show a",
    "loom logs a -f",
    "loom checkpoint ls a",
    "loom show a --events",
    "loom show a --spec",
    "",
  ]);
});

test("what is chosen in a view is chosen in its command", () => {
  expect(same("/jobs?state=COMPLETED&q=x")).toBe("loom ls --state succeeded");
  expect(same("/jobs?state=paused")).toBe("loom ls --state paused");
  expect(same("/jobs/a?metric=train/loss&smooth=0.8&x=time&rank=all")).toBe(
    "loom plot a train/loss --smooth 0.8 --by time --all-ranks",
  );
  expect(same("/jobs/a/logs?ranks=0,2&regex=it's (lost)")).toBe("loom logs a -f --ranks 0,2 --regex 'it'\\''s (lost)'");
  expect(same("/jobs/a/events?by=people")).toBe("loom inspect a audit");
});
