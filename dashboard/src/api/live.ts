/** The shell around `link.ts`: it owns the socket and the timers, and decides nothing. */

import { START, step, type Effect, type Event, type Link, type Sub } from "./link";
import { PART, restAfter } from "./pace";
import { firstMessage } from "./session";
import type { ServerMessage, TopicRequest } from "./wire";

const TICK = 1_000;
export const LINK = ""; // no subscription has this id
const LINGER = 400; // milliseconds a subscription outlives its last reader: pages change quickly

export class Live {
  private link: Link = START;
  private socket: WebSocket | null = null;
  private readonly readers = new Map<string, number>();
  private readonly listeners = new Map<string, Set<() => void>>();
  private readonly news = new Set<string>(); // what has changed: subscriptions, and LINK
  private isBusy = false; // it notifies listeners, or rests after that
  private resting = 0; // the timer

  constructor(private readonly address: string) {
    window.setInterval(() => this.happen({ type: "tick", now: performance.now() }), TICK);
    window.addEventListener("online", () => this.happen({ type: "wake" }));
    Object.assign(window, { __loom: this.peek() });
  }

  /** Read a topic from now on; returns how to stop. Readers with one id share a subscription. */
  read(id: string, request: TopicRequest): () => void {
    const count = this.readers.get(id) ?? 0;
    this.readers.set(id, count + 1);
    if (!this.link.subs.has(id)) this.happen({ type: "want", id, request });
    return () => {
      this.readers.set(id, (this.readers.get(id) ?? 1) - 1);
      window.setTimeout(() => this.forget(id), LINGER);
    };
  }

  /** Call a listener when a subscription, or the link, changes; a page in the background catches up when it is shown. */
  listen(id: string, listener: () => void): () => void {
    const known = this.listeners.get(id) ?? new Set();
    this.listeners.set(id, known.add(listener));
    return () => {
      known.delete(listener);
      if (!known.size && this.listeners.get(id) === known) this.listeners.delete(id);
    };
  }

  readonly state = (): Link => this.link;

  sub(id: string): Sub | undefined {
    return this.link.subs.get(id);
  }

  private forget(id: string): void {
    if (this.readers.get(id) !== 0) return;
    this.readers.delete(id);
    this.happen({ type: "drop", id });
  }

  private happen(event: Event): void {
    const before = this.link;
    const [link, effects] = step(before, event);
    this.link = link;
    effects.forEach((effect) => this.carryOut(effect));
    if (link === before) return;
    this.news.add(LINK).add(concerned(event));
    if (this.resting && isWhole(event)) this.wake();
    if (!this.isBusy) this.notify([...this.news], performance.now());
  }

  /** Notify listeners in parts, one part per frame, so that no frame takes long; then rest. */
  private notify(ids: string[], began: number): void {
    this.isBusy = true;
    requestAnimationFrame(() => {
      for (const id of ids.splice(0, PART)) {
        this.news.delete(id);
        this.listeners.get(id)?.forEach((listener) => listener());
      }
      window.setTimeout(() => (ids.length ? this.notify(ids, began) : this.rest(performance.now() - began)));
    });
  }

  private rest(cost: number): void {
    this.resting = window.setTimeout(() => {
      this.wake();
      if (this.news.size) this.notify([...this.news], performance.now());
    }, restAfter(cost));
  }

  private wake(): void {
    window.clearTimeout(this.resting);
    this.resting = 0;
    this.isBusy = false;
  }

  private carryOut(effect: Effect): void {
    switch (effect.do) {
      case "open":
        this.open(effect.socket);
        break;
      case "close":
        this.socket?.close();
        break;
      case "send":
        this.socket?.send(JSON.stringify(effect.message));
        break;
      case "wait":
        window.setTimeout(() => this.happen({ type: "wake" }), effect.milliseconds);
    }
  }

  private open(socket: number): void {
    const opened = new WebSocket(this.address);
    this.socket = opened;
    opened.onopen = () => {
      opened.send(firstMessage());
      this.happen({ type: "opened", socket, now: performance.now() });
    };
    opened.onclose = ({ code }) => this.happen({ type: "closed", socket, code });
    opened.onmessage = ({ data }: MessageEvent<string>) => {
      const message = JSON.parse(data) as ServerMessage;
      this.happen({ type: "message", socket, now: performance.now(), message });
    };
  }

  /** A debugging aid for the console: what each subscription holds, and a way to close the socket. */
  private peek() {
    return {
      cursor: (id: string) => this.sub(id)?.cursor ?? null,
      state: (id: string) => this.sub(id)?.value ?? null,
      subs: () =>
        [...this.link.subs].map(([id, { request }]) => ({ id, topic: request.topic, job: request.job })),
      cut: () => this.socket?.close(),
    };
  }
}

/** Return the subscription that an event is about; LINK where it is none. */
function concerned(event: Event): string {
  const about = event.type === "message" ? event.message : event;
  return "id" in about ? about.id : LINK;
}

/** Whether the user waits for this: a snapshot or an error is shown without waiting for a rest to end. */
function isWhole(event: Event): boolean {
  return event.type === "message" && (event.message.kind === "snapshot" || event.message.kind === "error");
}

/** Return the address of the stream that belongs to a page. */
export function streamAddress(page: Location): string {
  return `${page.protocol === "https:" ? "wss" : "ws"}://${page.host}/api/stream`;
}
