import { expect, test } from "vitest";

import { healthOf } from "./health";
import { type Effect, type Event, idOf, type Link, START, step } from "./link";
import type { ClientMessage, ServerMessage, TopicRequest } from "./wire";

const request: TopicRequest<"series"> = { topic: "series", job: "j", names: ["loss"] };
const of = { name: "loss", rank: 0, role: "t" };
const points = (...steps: number[]) => ({
  points: [{ ...of, steps, times: steps, values: steps.map((at) => at / 10) }],
});

/** Let events happen one after the other; return how the link is and all that was to be done. */
function after(...events: Event[]): { link: Link; effects: Effect[] } {
  let link = START;
  const effects: Effect[] = [];
  for (const event of events) {
    const [next, more] = step(link, event);
    link = next;
    effects.push(...more);
  }
  return { link, effects };
}

const received = (message: ServerMessage, socket = 1, now = 0): Event => ({ type: "message", socket, now, message });
const opened = (socket = 1): Event => ({ type: "opened", socket, now: 0 });
const closed = (socket = 1, code = 1006): Event => ({ type: "closed", socket, code });
const want: Event = { type: "want", id: "s", request };
const snapshot = received({ kind: "snapshot", id: "s", cursor: "c1", data: { series: [] } });
const delta = (cursor: string, socket: number, ...steps: number[]) =>
  received({ kind: "delta", id: "s", cursor, data: points(...steps) }, socket);

function sent(effects: Effect[]): ClientMessage[] {
  return effects.flatMap((effect) => (effect.do === "send" ? [effect.message] : []));
}

test("the first request opens the socket, and is sent once it is open", () => {
  const { effects } = after(want, opened());

  expect(effects).toEqual([
    { do: "open", socket: 1 },
    { do: "send", message: { op: "sub", id: "s", ...request } },
  ]);
});

test("after a lost line all is asked for again, from its last cursor on", () => {
  const jobs: TopicRequest = { topic: "jobs" };
  const also: Event = { type: "want", id: "all", request: jobs };
  const rows = received({ kind: "snapshot", id: "all", cursor: "", data: { items: [] } });

  const { effects } = after(
    ...[want, also, opened(), snapshot, rows, delta("c2", 1, 1, 2), closed()],
    ...[{ type: "wake" } as const, opened(2)],
  );

  expect(sent(effects).slice(2)).toEqual([
    { op: "sub", id: "s", ...request, after: "c2" },
    { op: "sub", id: "all", topic: "jobs" },
  ]);
});

test("what was missed is added without a hole and without a point twice", () => {
  const { link } = after(
    ...[want, opened(), snapshot, delta("c2", 1, 1, 2), closed(), { type: "wake" } as const, opened(2)],
    delta("c5", 2, 2, 3, 4, 5),
  );

  const { value, cursor } = link.subs.get("s") ?? {};
  expect(cursor).toBe("c5");
  expect(value).toMatchObject({ series: [{ steps: [1, 2, 3, 4, 5], last: [0.1, 0.2, 0.3, 0.4, 0.5] }] });
});

test("a snapshot takes the place of all that was there", () => {
  const fresh = received({ kind: "snapshot", id: "s", cursor: "c9", data: { series: [of] } });

  const { link } = after(want, opened(), snapshot, delta("c2", 1, 1, 2), fresh);

  expect(link.subs.get("s")).toEqual({ request, cursor: "c9", value: { series: [of] } });
});

test("there is one socket at a time: messages of an older one are ignored", () => {
  const late = delta("c9", 1, 99);

  const { link, effects } = after(
    ...[want, opened(), snapshot, closed(), { type: "wake" } as const],
    ...[late, closed(), { type: "wake" } as const, opened()],
  );

  expect(link.subs.get("s")?.cursor).toBe("c1");
  expect(effects.filter((effect) => effect.do === "open")).toEqual([
    { do: "open", socket: 1 },
    { do: "open", socket: 2 },
  ]);
});

test("each try to connect waits longer, up to a limit, and less again after a message", () => {
  const tries = Array.from({ length: 7 }, (_, at): Event[] => [closed(at + 1), { type: "wake" }]).flat();

  const { effects } = after(want, ...tries, opened(8), delta("c", 8, 1), closed(8));

  const waits = effects.flatMap((effect) => (effect.do === "wait" ? [effect.milliseconds] : []));
  expect(waits).toEqual([250, 500, 1000, 2000, 4000, 8000, 8000, 250]);
});

test("a silent socket is closed for another", () => {
  const tick: Event = { type: "tick", now: 7_000 };

  const { link, effects } = after(want, opened(), snapshot, tick);

  expect(effects.slice(2)).toEqual([
    { do: "close", socket: 1 },
    { do: "open", socket: 2 },
  ]);
  expect(healthOf(link, 7_000)).toMatchObject({ state: "lost", seconds: 0 });
});

test("who was shut out is not let in by trying", () => {
  const { link, effects } = after(want, opened(), closed(1, 4401), { type: "wake" });

  expect(link.phase).toBe("revoked");
  expect(effects.filter((effect) => effect.do === "wait")).toEqual([]);
});

test("a request that is dropped is taken back, and is not asked for again", () => {
  const other: Event = { type: "want", id: "all", request: { topic: "jobs" } };
  const drop: Event = { type: "drop", id: "s" };

  const { effects } = after(want, other, opened(), drop, closed(), { type: "wake" }, opened(2));

  expect(sent(effects).slice(2)).toEqual([
    { op: "unsub", id: "s" },
    { op: "sub", id: "all", topic: "jobs" },
  ]);
});

test("without a subscription there is no connection", () => {
  const { link, effects } = after(want, closed(), { type: "drop", id: "s" }, { type: "wake" }, closed(2));

  expect(link.phase).toBe("idle");
  expect(effects.filter((effect) => effect.do === "wait")).toHaveLength(1);
  expect(step(link, want)[1]).toEqual([{ do: "open", socket: 3 }]);
});

test("the dot shows live, behind and lost", () => {
  const heartbeat = (behind: number, weaver: boolean) => received({ kind: "beat", time: 0, behind, weaver }, 1, 1000);
  const seen = (events: Event[], now: number) => healthOf(after(want, opened(), ...events).link, now).state;

  expect([
    seen([heartbeat(0, true)], 2000),
    seen([heartbeat(0, true)], 6000),
    seen([heartbeat(5, true)], 2000),
    seen([heartbeat(0, false)], 2000),
    seen([heartbeat(0, true), closed()], 2000),
  ]).toEqual(["live", "behind", "behind", "behind", "lost"]);
});

test("a subscription's name fits, and differs where the request does", () => {
  const long = "train/very/long/name/".repeat(8);
  const names = ["a", "b"].map((end) => idOf({ ...request, names: [long + end] }));

  expect(idOf({ ...request, ranks: [0, 1], buckets: 600 })).toBe("series:j:loss:0,1:600");
  expect(idOf({ ...request, replaced: true })).toBe("series:j:loss:replaced");
  expect(names.map((name) => name.length)).toEqual([90, 90]);
  expect(names[0]).not.toBe(names[1]);
});
