import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { firstMessage, forgetSession, sessionHeaders } from "./session";

const stored = new Map<string, string>();

beforeEach(() => {
  vi.stubGlobal("localStorage", {
    getItem: (name: string) => stored.get(name) ?? null,
    removeItem: (name: string) => stored.delete(name),
  });
});

afterEach(() => {
  stored.clear();
  vi.unstubAllGlobals();
});

test("what the login page has stored is shown with every request and begins every socket", () => {
  stored.set("loom-session", "s3cret");

  expect(sessionHeaders()).toEqual({ "X-Loom-Session": "s3cret" });
  expect(JSON.parse(firstMessage())).toEqual({ op: "session", secret: "s3cret" });
});

test("who signs out leaves nothing behind", () => {
  stored.set("loom-session", "s3cret");
  stored.set("loom-theme", "dark");

  forgetSession();

  expect(sessionHeaders()).toEqual({});
  expect([...stored.keys()]).toEqual(["loom-theme"]);
});

test("a browser that stores nothing is not signed in", () => {
  vi.stubGlobal("localStorage", undefined);

  expect(sessionHeaders()).toEqual({});
  expect(JSON.parse(firstMessage())).toEqual({ op: "session", secret: "" });
});
