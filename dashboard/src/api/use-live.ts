/** How components read what is live: one hook, by topic. */

import { createContext, useCallback, useContext, useEffect, useState, useSyncExternalStore } from "react";

import { idOf, type Link, type Sub } from "./link";
import { LINK, type Live } from "./live";
import type { Problem, Topic, TopicRequest, Values } from "./wire";

/** A source of topics: the socket, or the data of a report file. */
export type Answers = Pick<Live, "read" | "listen" | "state" | "sub">;

export const LiveContext = createContext<Answers | null>(null);

export interface Reading<T extends Topic> {
  value: Values[T] | undefined;
  problem: Problem | undefined;
}

/** Read a topic while the component is there. `null` reads nothing. */
export function useLive<T extends Topic>(request: TopicRequest<T> | null): Reading<T> {
  const live = useLiveObject();
  const words = request ? JSON.stringify(request) : "";
  const id = request ? idOf(request) : "";
  const sub = useSyncExternalStore(useListen(live, id), () => live.sub(id));
  useEffect(() => {
    if (words) return live.read(id, JSON.parse(words) as TopicRequest);
  }, [live, id, words]);
  return { value: sub?.value as Values[T] | undefined, problem: sub?.problem };
}

/** Read several requests of one topic, in their order; the list is another one only when something in it is. */
export function useLives<T extends Topic>(requests: readonly TopicRequest<T>[]): readonly Reading<T>[] {
  const live = useLiveObject();
  const words = JSON.stringify(requests);
  const [select] = useState(() => remembering<T>());
  const listen = useCallback(
    (listener: () => void) => {
      const ends = (JSON.parse(words) as TopicRequest[]).map((request) => live.listen(idOf(request), listener));
      return () => ends.forEach((end) => end());
    },
    [live, words],
  );
  const found = useSyncExternalStore(listen, () => select(requests.map((request) => live.sub(idOf(request)))));
  useEffect(() => {
    const ends = (JSON.parse(words) as TopicRequest[]).map((request) => live.read(idOf(request), request));
    return () => ends.forEach((end) => end());
  }, [live, words]);
  return found;
}

/** Return the link itself, for components that show its state. */
export function useLink(): Link {
  const live = useLiveObject();
  return useSyncExternalStore(useListen(live, LINK), live.state);
}

function useListen(live: Answers, id: string) {
  return useCallback((listener: () => void) => live.listen(id, listener), [live, id]);
}

function useLiveObject(): Answers {
  const live = useContext(LiveContext);
  if (!live) throw new Error("LiveContext is missing above this component");
  return live;
}

/** Return what makes a list of what subscriptions hold, and gives the last one again while all is the same. */
function remembering<T extends Topic>(): (subs: readonly (Sub | undefined)[]) => readonly Reading<T>[] {
  let [before, kept]: [readonly (Sub | undefined)[], readonly Reading<T>[]] = [[], []];
  return (subs) => {
    const isSame = subs.length === before.length && subs.every((sub, at) => sub === before[at]);
    if (isSame) return kept;
    before = subs;
    kept = subs.map((sub) => ({ value: sub?.value as Values[T] | undefined, problem: sub?.problem }));
    return kept;
  };
}
