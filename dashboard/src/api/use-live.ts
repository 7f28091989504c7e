/** How components read what is live: one hook, by topic. */

import { createContext, useCallback, useContext, useEffect, useState, useSyncExternalStore } from "react";

import { idOf } from "./ids";
import type { Link, Sub } from "./link";
import { LINK, type Live } from "./live";
import type { Problem, Topic, Values, Wish } from "./wire";

/** Whoever answers readers: the socket, or what a file holds. */
export type Answers = Pick<Live, "read" | "listen" | "state" | "sub">;

export const LiveContext = createContext<Answers | null>(null);

export interface Reading<T extends Topic> {
  value: Values[T] | undefined;
  problem: Problem | undefined;
}

/** Read a topic while the component is there. `null` reads nothing. */
export function useLive<T extends Topic>(wish: Wish<T> | null): Reading<T> {
  const live = useLiveObject();
  const words = wish ? JSON.stringify(wish) : "";
  const id = wish ? idOf(wish) : "";
  const sub = useSyncExternalStore(useListen(live, id), () => live.sub(id));
  useEffect(() => {
    if (words) return live.read(id, JSON.parse(words) as Wish);
  }, [live, id, words]);
  return { value: sub?.value as Values[T] | undefined, problem: sub?.problem };
}

/** Read several wishes of one topic, in their order; the list is another one only when something in it is. */
export function useLives<T extends Topic>(wishes: readonly Wish<T>[]): readonly Reading<T>[] {
  const live = useLiveObject();
  const words = JSON.stringify(wishes);
  const [select] = useState(() => remembering<T>());
  const listen = useCallback(
    (listener: () => void) => {
      const ends = (JSON.parse(words) as Wish[]).map((wish) => live.listen(idOf(wish), listener));
      return () => ends.forEach((end) => end());
    },
    [live, words],
  );
  const found = useSyncExternalStore(listen, () => select(wishes.map((wish) => live.sub(idOf(wish)))));
  useEffect(() => {
    const ends = (JSON.parse(words) as Wish[]).map((wish) => live.read(idOf(wish), wish));
    return () => ends.forEach((end) => end());
  }, [live, words]);
  return found;
}

/** Return the link itself, for whoever shows how it is. */
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
