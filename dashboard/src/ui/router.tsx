/** Where the page is: the address bar is the only place that knows. */

import { type AnchorHTMLAttributes, type MouseEvent, useCallback, useMemo, useSyncExternalStore } from "react";

const MOVED = "loom:moved";

/** Go elsewhere inside the page. */
export function go(to: string, { replace = false } = {}): void {
  if (replace) history.replaceState(null, "", to);
  else history.pushState(null, "", to);
  window.dispatchEvent(new Event(MOVED));
}

export function usePath(): string {
  return useSyncExternalStore(listen, () => location.pathname);
}

export function useSearch(): string {
  return useSyncExternalStore(listen, () => location.search);
}

/** A word of the query, and how to change it; what is empty is left out of the address. */
export function useWord(name: string): [string, (value: string) => void] {
  const value = useSyncExternalStore(listen, () => new URLSearchParams(location.search).get(name) ?? "");
  const change = useCallback(
    (next: string) => {
      const words = new URLSearchParams(location.search);
      if (next) words.set(name, next);
      else words.delete(name);
      const query = words.toString();
      go(location.pathname + (query ? `?${query}` : ""), { replace: true });
    },
    [name],
  );
  return [value, change];
}

/** All words of one name, in their order, and how to change them. */
export function useWords(name: string): [readonly string[], (values: readonly string[]) => void] {
  const found = useSyncExternalStore(listen, () =>
    JSON.stringify(new URLSearchParams(location.search).getAll(name)),
  );
  const change = useCallback(
    (values: readonly string[]) => {
      const words = new URLSearchParams(location.search);
      words.delete(name);
      for (const value of values) words.append(name, value);
      go(`${location.pathname}?${words.toString()}`, { replace: true });
    },
    [name],
  );
  return [useMemo(() => JSON.parse(found) as string[], [found]), change];
}

function listen(listener: () => void): () => void {
  window.addEventListener("popstate", listener);
  window.addEventListener(MOVED, listener);
  return () => {
    window.removeEventListener("popstate", listener);
    window.removeEventListener(MOVED, listener);
  };
}

interface Props extends AnchorHTMLAttributes<HTMLAnchorElement> {
  href: string;
}

/** A link inside the page; with a modifier key it opens as any other link does. */
export function Link({ href, onClick, children, ...rest }: Props) {
  const follow = (event: MouseEvent<HTMLAnchorElement>) => {
    onClick?.(event);
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    go(href);
    window.scrollTo(0, 0);
  };
  return (
    <a {...rest} href={href} onClick={follow}>
      {children}
    </a>
  );
}
