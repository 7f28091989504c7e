/** Hooks about time and about the size of an element. */

import { useCallback, useEffect, useState, useSyncExternalStore } from "react";

/** Whether a component has been mounted for a while; one that only scrolls by requests no data. */
export function useLasting(milliseconds: number): boolean {
  const [lasts, setLasts] = useState(false);
  useEffect(() => {
    const timer = window.setTimeout(() => setLasts(true), milliseconds);
    return () => window.clearTimeout(timer);
  }, [milliseconds]);
  return lasts;
}

/** Whether a media query holds. */
export function useMedia(query: string): boolean {
  const listen = useCallback(
    (listener: () => void) => {
      const found = window.matchMedia(query);
      found.addEventListener("change", listener);
      return () => found.removeEventListener("change", listener);
    },
    [query],
  );
  return useSyncExternalStore(listen, () => window.matchMedia(query).matches);
}

/** A value that has not changed for a while, such as the text of a request while the user types. */
export function useSettled<T>(value: T, milliseconds: number): T {
  const words = JSON.stringify(value);
  const [settled, setSettled] = useState(words);
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(words), milliseconds);
    return () => window.clearTimeout(timer);
  }, [words, milliseconds]);
  return JSON.parse(settled) as T;
}

/** How far down the page an element begins, as it changes. */
export function useTop(): [top: number, ref: (element: HTMLElement | null) => (() => void) | undefined] {
  const [top, setTop] = useState(0);
  const ref = useCallback((element: HTMLElement | null) => {
    if (!element) return undefined;
    const read = () => setTop(Math.round(element.getBoundingClientRect().top + window.scrollY));
    read();
    const watcher = new ResizeObserver(read); // whatever moves it makes the page longer or shorter
    watcher.observe(document.body);
    return () => watcher.disconnect();
  }, []);
  return [top, ref];
}

/** How wide an element is, as it changes. */
export function useWidth(): [width: number, ref: (element: HTMLElement | null) => (() => void) | undefined] {
  const [width, setWidth] = useState(0);
  const ref = useCallback((element: HTMLElement | null) => {
    if (!element) return undefined;
    const read = () => setWidth(element.clientWidth);
    read();
    const watcher = new ResizeObserver(read);
    watcher.observe(element);
    return () => watcher.disconnect();
  }, []);
  return [width, ref];
}
