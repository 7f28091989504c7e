/** The page's one socket as a state machine: events in, effects out. Pure.
 *
 * Every socket has a number, and messages of an older one are ignored: so there is one at a time.
 * Each subscription keeps the cursor of its last message and resumes behind it after a reconnect.
 */

import { merged } from "./merge";
import type { ClientMessage, Deltas, Problem, Role, ServerMessage, Topic, TopicRequest, Values } from "./wire";

const SHORTEST_WAIT = 250; // milliseconds until the first try to connect again
const LONGEST_WAIT = 8_000;
const SILENCE = 7_000; // a server sends a heartbeat every 2 s; after this long it is considered lost
const REVOKED = 4401;

export interface Sub {
  request: TopicRequest;
  cursor: string;
  value?: Values[Topic];
  problem?: Problem;
}

export interface Link {
  phase: "idle" | "opening" | "open" | "waiting" | "revoked";
  socket: number;
  tries: number;
  receivedAt: number;
  behind: number;
  weaver: boolean;
  role: Role | null;
  subs: ReadonlyMap<string, Sub>;
}

export type Event =
  | { type: "want"; id: string; request: TopicRequest }
  | { type: "drop"; id: string }
  | { type: "opened"; socket: number; now: number }
  | { type: "message"; socket: number; now: number; message: ServerMessage }
  | { type: "closed"; socket: number; code: number }
  | { type: "wake" }
  | { type: "tick"; now: number };

export type Effect =
  | { do: "open"; socket: number }
  | { do: "close"; socket: number }
  | { do: "send"; message: ClientMessage }
  | { do: "wait"; milliseconds: number };

type Step = [Link, Effect[]];

export const START: Link = {
  phase: "idle",
  socket: 0,
  tries: 0,
  receivedAt: 0,
  behind: 0,
  weaver: true,
  role: null,
  subs: new Map(),
};

/** Return how the link is after an event, and what is to be done. */
export function step(link: Link, event: Event): Step {
  if ("socket" in event && event.socket !== link.socket) return [link, []];
  switch (event.type) {
    case "want":
      return want(link, event.id, event.request);
    case "drop":
      return drop(link, event.id);
    case "opened": {
      const open: Link = { ...link, phase: "open", receivedAt: event.now };
      return [open, [...link.subs].map(([id, sub]) => ({ do: "send", message: asking(id, sub) }))];
    }
    case "message":
      return [received({ ...link, tries: 0, receivedAt: event.now }, event.message), []];
    case "closed":
      return lost(link, event.code);
    case "wake":
      return link.phase === "waiting" ? open(link) : [link, []];
    case "tick":
      return tick(link, event.now);
  }
}

function want(link: Link, id: string, request: TopicRequest): Step {
  const sub: Sub = { request, cursor: "" };
  const next = withSub(link, id, sub);
  if (link.phase === "idle") return open(next);
  return [next, link.phase === "open" ? [{ do: "send", message: asking(id, sub) }] : []];
}

function drop(link: Link, id: string): Step {
  const subs = new Map(link.subs);
  subs.delete(id);
  const gone: Effect[] = link.phase === "open" ? [{ do: "send", message: { op: "unsub", id } }] : [];
  return [{ ...link, subs }, gone];
}

function open(link: Link): Step {
  const socket = link.socket + 1;
  return [{ ...link, phase: "opening", socket }, [{ do: "open", socket }]];
}

function lost(link: Link, code: number): Step {
  if (code === REVOKED) return [{ ...link, phase: "revoked" }, []];
  if (link.subs.size === 0) return [{ ...link, phase: "idle" }, []]; // there is no subscription
  const milliseconds = Math.min(LONGEST_WAIT, SHORTEST_WAIT * 2 ** link.tries);
  const next: Link = { ...link, phase: "waiting", tries: link.tries + 1 };
  return [next, [{ do: "wait", milliseconds }]];
}

function tick(link: Link, now: number): Step {
  if (link.phase !== "open" || now - link.receivedAt < SILENCE) return [link, []];
  const [next, effects] = open(link);
  return [next, [{ do: "close", socket: link.socket }, ...effects]];
}

function received(link: Link, message: ServerMessage): Link {
  switch (message.kind) {
    case "hello":
      return { ...link, role: message.role };
    case "beat":
      return { ...link, behind: message.behind, weaver: message.weaver };
    case "error":
      return change(link, message.id, (sub) => ({ ...sub, problem: message.problem }));
    case "snapshot":
      return change(link, message.id, ({ request }) => ({
        request,
        cursor: message.cursor,
        value: message.data as Values[Topic],
      }));
    case "delta":
      return change(link, message.id, (sub) => ({
        request: sub.request,
        cursor: message.cursor,
        value: sub.value && merged(sub.request.topic, sub.value, message.data as Deltas[Topic]),
      }));
  }
}

/** Return what asks for a subscription: from its cursor on, if there is a value to add to. */
function asking(id: string, sub: Sub): ClientMessage {
  const after = sub.value && sub.cursor ? { after: sub.cursor } : {};
  return { op: "sub", id, ...sub.request, ...after };
}

function change(link: Link, id: string, how: (sub: Sub) => Sub): Link {
  const sub = link.subs.get(id);
  return sub ? withSub(link, id, how(sub)) : link;
}

function withSub(link: Link, id: string, sub: Sub): Link {
  return { ...link, subs: new Map(link.subs).set(id, sub) };
}

const LONGEST_ID = 90; // letters; the server takes a hundred

/** Return a name that people can read, and that is short enough for the server. */
export function idOf(request: TopicRequest): string {
  const { topic, job, names, ranks, buckets, first, last, replaced, span, limit, level, regex } = request;
  const range = first === undefined && last === undefined ? undefined : `${first ?? ""}..${last ?? ""}`;
  const older = replaced ? "replaced" : undefined;
  const more = [names?.join(","), ranks?.join(","), buckets, range, older, span, limit, level, regex];
  const name = [topic, job, ...more].filter((part) => part !== undefined).join(":");
  return name.length <= LONGEST_ID ? name : `${name.slice(0, LONGEST_ID - 9)}~${digest(name)}`;
}

/** FNV-1a: enough for some dozen names. */
function digest(text: string): string {
  let hash = 0x811c9dc5;
  for (let at = 0; at < text.length; at += 1) {
    hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193);
  }
  return (hash >>> 0).toString(16).padStart(8, "0");
}
