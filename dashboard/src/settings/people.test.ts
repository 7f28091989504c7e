import { expect, test } from "vitest";

import type { Retention, Token, User } from "../api/use-people";
import { retentionLines, secondsOf, shownOf, stateOf, tokenCommand, userCommand, userLines } from "./people";

const NOW = Date.parse("2030-01-02T00:00:00Z");
const token = (id: string, more: Partial<Token> = {}): Token => ({
  ...{ id, user: "ci", label: "", kind: "token", created_at: "2030-01-01T00:00:00Z" },
  ...{ expires_at: null, revoked_at: null, ...more },
});
const user: User = { name: "ci", role: "viewer", disabled: true, run_as: null, created_at: "" };

test("a token counts until it is over or revoked, and those that count come first to mind", () => {
  const over = token("b", { expires_at: "2030-01-01T12:00:00Z" });
  const revoked = token("c", { expires_at: "2030-02-01T00:00:00Z", revoked_at: "2030-01-01T01:00:00Z" });

  expect([token("a"), over, revoked].map((one) => stateOf(one, NOW))).toEqual(["good", "over", "revoked"]);
  expect(shownOf([token("a"), over, token("d")], false, NOW).map(({ id }) => id)).toEqual(["d", "a"]);
  expect(shownOf([token("a"), over], true, NOW).map(({ id }) => id)).toEqual(["b", "a"]);
});

test("the effect on a user is shown, with its command", () => {
  expect(userLines("ci", "viewer", false, undefined)).toEqual([
    "ci may read jobs, metrics, logs, devices.",
    "They sign in with a link or a token; create one next.",
  ]);
  expect(userLines("ci", "admin", true, user)).toHaveLength(1);
  expect(userCommand("ci", "admin", false, user)).toBe("loom tokens user ci --role admin --enable");
  expect(userCommand("ci", "viewer", true, user)).toBe("loom tokens user ci --role viewer --disable");
});

test("days are a number within ten years, or nothing", () => {
  expect(["", "30", "0", "x", "4000"].map(secondsOf)).toEqual([
    { seconds: null },
    { seconds: 2_592_000 },
    { wrong: "A number of days, 3650 at most." },
    { wrong: "A number of days, 3650 at most." },
    { wrong: "A number of days, 3650 at most." },
  ]);
  expect(tokenCommand("ci", "night's job", "30")).toBe(`loom tokens add ci --label 'night'"'"'s job' --days 30`);
});

test("a retention time has the largest unit that fits", () => {
  const kept: Retention = { runs: 90 * 86_400, metrics: null, logs: 4 * 604_800, dumps: 5400, keep: 100, pinned: ["best"], problem: null };

  expect(retentionLines(kept)).toEqual([
    ["Ended runs", "removed after 90 days"],
    ["Their metrics", "kept forever"],
    ["Their logs", "removed after 4 weeks"],
    ["Stacks and dumps", "removed after 90 minutes"],
    ["Always kept", "the 100 that ended last, and best"],
  ]);
  expect(retentionLines({ ...kept, runs: null, logs: null, dumps: null })).toHaveLength(4);
});
