/** A value that has not changed for a while: what is asked of the server while somebody types. */

import { useEffect, useState } from "react";

export function useSettled<T>(value: T, milliseconds: number): T {
  const words = JSON.stringify(value);
  const [settled, setSettled] = useState(words);
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(words), milliseconds);
    return () => window.clearTimeout(timer);
  }, [words, milliseconds]);
  return JSON.parse(settled) as T;
}
