/** Whether a media query holds. */

import { useCallback, useSyncExternalStore } from "react";

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
