/** Whether a component has been there for a while: one that only passes by need not ask for data. */

import { useEffect, useState } from "react";

export function useLasting(milliseconds: number): boolean {
  const [lasts, setLasts] = useState(false);
  useEffect(() => {
    const timer = window.setTimeout(() => setLasts(true), milliseconds);
    return () => window.clearTimeout(timer);
  }, [milliseconds]);
  return lasts;
}
