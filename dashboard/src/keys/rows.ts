/** Rows of the list at hand, and the one that has the focus. */

const ROWS = "main [role=row]:not(:has([role=columnheader])), main tbody tr, main [data-row]";
const OPENS = "a[href], button:not(:disabled)";

/** Return the rows that are in the page, from the top; of a long list these are the ones near the view. */
export function rows(): HTMLElement[] {
  return [...document.querySelectorAll<HTMLElement>(ROWS)].filter((row) => row.checkVisibility());
}

/** Return which row comes next; the first from nowhere, and an end stays the end. */
export function moved(count: number, at: number, by: number): number {
  if (at < 0) return by > 0 ? 0 : count - 1;
  return Math.min(count - 1, Math.max(0, at + by));
}

/** Return where one comes in: at the first row in view, or going up at the last; of none in view, at an end. */
export function entered(inView: readonly boolean[], by: number): number {
  const at = by > 0 ? inView.indexOf(true) : inView.lastIndexOf(true);
  return at < 0 ? moved(inView.length, -1, by) : at;
}

/** Return what a row opens with: itself, or the first thing to press inside. */
export function opener(row: HTMLElement): HTMLElement | null {
  return row.matches(OPENS) ? row : row.querySelector<HTMLElement>(OPENS);
}

/** Return the row that has the focus; one whose further buttons have it is not meant. */
export function current(all: readonly HTMLElement[]): HTMLElement | undefined {
  const focused = document.activeElement;
  return all.find((row) => row === focused || (focused !== null && opener(row) === focused));
}

/** Whether one sees a row, or a part of it: it is inside the window and all that scrolls around it. */
function isInView(row: HTMLElement): boolean {
  const { top, bottom } = row.getBoundingClientRect();
  for (let around = row.parentElement; around; around = around.parentElement) {
    const frame = around.getBoundingClientRect();
    const isScrolled = around.scrollHeight > around.clientHeight && getComputedStyle(around).overflowY !== "visible";
    if (isScrolled && around !== document.documentElement && (bottom <= frame.top || top >= frame.bottom)) return false;
  }
  return bottom > 0 && top < window.innerHeight;
}

/** Move the focus by a row. */
export function move(by: 1 | -1): void {
  const all = rows();
  const at = all.findLastIndex((row) => row.contains(document.activeElement));
  const row = all[at < 0 ? entered(all.map(isInView), by) : moved(all.length, at, by)];
  if (!row) return;
  const target = opener(row) ?? row;
  if (target === row && !row.hasAttribute("tabindex")) row.tabIndex = -1;
  target.focus({ preventScroll: true });
  row.scrollIntoView({ block: "nearest" });
}
