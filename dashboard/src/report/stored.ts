/** Stands where the socket does on a page: it answers from what the file holds, once. */

import { START, type Link, type Sub } from "../api/link";
import type { Answers } from "../api/use-live";
import type { Curve, Entry, Topic, Values, TopicRequest } from "../api/wire";
import { withoutReplaced } from "./data";

export class Stored implements Answers {
  private readonly subs = new Map<string, Sub>();
  private readonly listeners = new Set<() => void>();

  constructor(
    private readonly curves: readonly Curve[],
    private readonly timeline: Entry[],
  ) {}

  read(id: string, request: TopicRequest): () => void {
    const value = this.answer(request);
    if (!this.subs.has(id)) this.subs.set(id, { request, cursor: "", ...(value ? { value } : {}) });
    this.listeners.forEach((listener) => listener());
    return () => undefined;
  }

  readonly listen = (_id: string, listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  readonly state = (): Link => START;

  sub(id: string): Sub | undefined {
    return this.subs.get(id);
  }

  private answer({ topic, names, ranks, replaced }: TopicRequest): Values[Topic] | undefined {
    if (topic === "timeline") return { items: this.timeline };
    if (topic !== "series") return undefined;
    const isWanted = ({ name, rank }: Curve) => (names?.includes(name) ?? true) && (ranks?.includes(rank) ?? true);
    const found = this.curves.filter(isWanted);
    return { series: replaced ? found : found.map(withoutReplaced) };
  }
}
