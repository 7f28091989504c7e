/** The listener for shortcuts: active while no field has the focus and no dialog is open. */

import { useEffect, useEffectEvent, useRef } from "react";

import { perform } from "./deeds";
import { press, QUIET } from "./sequence";
import { SEARCH, type Shown, TABLE } from "./table";

const BOUND = TABLE.map(({ keys }) => keys);
const FIELDS = "input:not([type=checkbox], [type=radio], [type=range]), textarea, select, [contenteditable=true]";

/** Listen while the page is there. */
export function useKeys(show: (what: Shown) => void): void {
  const begun = useRef(QUIET);
  const pressed = useEffectEvent((event: KeyboardEvent) => {
    if (isOthers(event)) {
      begun.current = QUIET;
      if (event.key === "Escape") left(event);
      return;
    }
    const { next, done, isTaken } = press(begun.current, event.key, event.timeStamp, BOUND);
    begun.current = next;
    const shortcut = TABLE.find(({ keys }) => keys === done);
    const isDone = shortcut ? perform(shortcut.deed, show) : isTaken;
    if (isDone) event.preventDefault();
  });
  useEffect(() => {
    const listener = (event: KeyboardEvent) => pressed(event);
    window.addEventListener("keydown", listener);
    return () => window.removeEventListener("keydown", listener);
  }, []);
}

/** Leave a filter with what is in it: the keys are the page's again, and go through what was found. */
function left(event: KeyboardEvent): void {
  if (!(event.target instanceof HTMLElement) || !event.target.matches(SEARCH)) return;
  event.preventDefault(); // some browsers would clear it
  event.target.blur();
}

/** Whether a key is for a field, a dialog or the browser. */
function isOthers(event: KeyboardEvent): boolean {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return true;
  if (document.querySelector("dialog[open]")) return true;
  return event.target instanceof Element && event.target.closest(FIELDS) !== null;
}
