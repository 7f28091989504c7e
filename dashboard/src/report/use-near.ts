/** Whether an element is in view or close to it: what is far away need not be drawn, except on paper. */

import { useCallback, useEffect, useState } from "react";

const BESIDE = "1200px 0px"; // above and below what is in view

export function useNear(): [isNear: boolean, ref: (element: HTMLElement | null) => (() => void) | undefined] {
  const [isNear, setIsNear] = useState(false);
  const [isPrinting, setIsPrinting] = useState(false);
  const ref = useCallback((element: HTMLElement | null) => {
    if (!element) return undefined;
    const told = (entries: IntersectionObserverEntry[]) => setIsNear(entries.at(-1)?.isIntersecting ?? false);
    const watcher = new IntersectionObserver(told, { rootMargin: BESIDE });
    watcher.observe(element);
    return () => watcher.disconnect();
  }, []);
  useEffect(() => {
    const [begin, end] = [() => setIsPrinting(true), () => setIsPrinting(false)];
    window.addEventListener("beforeprint", begin);
    window.addEventListener("afterprint", end);
    return () => {
      window.removeEventListener("beforeprint", begin);
      window.removeEventListener("afterprint", end);
    };
  }, []);
  return [isNear || isPrinting, ref];
}
