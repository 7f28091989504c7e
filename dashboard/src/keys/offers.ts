/** What can be done on the page, collected from the page itself: a new control is there by being there. */

import { press } from "./deeds";
import { keysOf } from "./table";

export interface Offer {
  part: string;
  words: string;
  keys: string;
  run: () => void;
}

const PLACES: readonly [part: string, at: string][] = [
  ["Controls", "main [role=group][aria-label=Controls] button:not(:disabled)"],
  ["Views", "main nav a[href]:not([aria-current])"],
  ["Pages", "header nav a[href]:not([aria-current])"],
];

/** Return every control, view and page that this user has here. */
export function offers(): Offer[] {
  return PLACES.flatMap(([part, at]) =>
    [...document.querySelectorAll<HTMLElement>(at)].map((element) => ({
      part,
      words: (element.getAttribute("aria-label") ?? element.textContent).trim(),
      keys: keysOf((selector) => element.matches(selector)),
      run: () => press(element),
    })),
  );
}

/** Return those that have every word somewhere. */
export function fitting<T extends { part: string; words: string }>(all: readonly T[], words: string): T[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return all.filter((one) => wanted.every((word) => `${one.part} ${one.words}`.toLowerCase().includes(word)));
}
