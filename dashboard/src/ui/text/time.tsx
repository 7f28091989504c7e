import { useSyncExternalStore } from "react";

import { age, NOTHING } from "./format";

/** How long ago something was; its title has the date. */
export function Ago({ time }: { time: string | null }) {
  const now = useNow();
  if (!time) return <span>{NOTHING}</span>;
  const at = new Date(time);
  return (
    <time className="number" dateTime={time} title={at.toLocaleString()}>
      {age(Math.max(0, (now - at.getTime()) / 1000))}
    </time>
  );
}

const listeners = new Set<() => void>();
let now = Date.now();
let passed = performance.now();
let timer = 0;

/** Return the time in milliseconds, right to a second. */
export function useNow(): number {
  return useSyncExternalStore(listen, () => now);
}

/** Return milliseconds of the clock that never jumps, right to a second. */
export function usePassed(): number {
  return useSyncExternalStore(listen, () => passed);
}

function listen(listener: () => void): () => void {
  listeners.add(listener);
  if (listeners.size === 1) {
    read();
    timer = window.setInterval(tick, 1000);
  }
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0) window.clearInterval(timer);
  };
}

function read(): void {
  now = Date.now();
  passed = performance.now();
}

function tick(): void {
  read();
  listeners.forEach((listener) => listener());
}
