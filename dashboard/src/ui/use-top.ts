/** How far down the page an element begins, as it changes. */

import { useCallback, useState } from "react";

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
