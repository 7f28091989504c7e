/** What a shortcut does to the page, and whether it would do anything here. */

import { current, move, opener, rows } from "./rows";
import type { Deed, Shown } from "./table";

/** Whether something would happen now. */
export function isPossible(deed: Deed): boolean {
  if (deed.kind === "show") return true;
  if (deed.kind === "move") return rows().length > 0;
  if (deed.kind === "open") return rows().some((row) => opener(row) !== null);
  return found(deed.at) !== null;
}

/** Do it; return whether it was done, so that a key which does nothing stays the browser's. */
export function perform(deed: Deed, show: (what: Shown) => void): boolean {
  if (deed.kind === "open") return openRow();
  if (!isPossible(deed)) return false;
  if (deed.kind === "show") show(deed.what);
  else if (deed.kind === "move") move(deed.by);
  else if (deed.kind === "focus") found(deed.at)?.focus();
  else if (deed.kind === "clear") return cleared(document.querySelectorAll<HTMLInputElement>(deed.at));
  else press(found(deed.at));
  return true;
}

/** Press something as a person does: the focus is there, and comes back there after a dialog. */
export function press(element: HTMLElement | null): void {
  element?.focus({ preventScroll: true });
  element?.click();
}

function openRow(): boolean {
  const row = current(rows());
  const target = row && opener(row);
  if (!target) return false;
  target.click();
  return true;
}

/** Empty the fields that have words, as typing would; return whether there was one. */
function cleared(fields: Iterable<HTMLInputElement>): boolean {
  const full = [...fields].filter(({ value }) => value);
  for (const field of full) {
    field.setRangeText("", 0, field.value.length);
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }
  return full.length > 0;
}

function found(selector: string): HTMLElement | null {
  return document.querySelector<HTMLElement>(selector);
}
