/** Every shortcut of the page: the listener binds this table, the sheet shows it. A new one is a line. */

export type Deed =
  | { kind: "press" | "focus" | "clear"; at: string } // the first of the page that a selector finds
  | { kind: "move"; by: 1 | -1 }
  | { kind: "open" }
  | { kind: "show"; what: Shown };

/** What lies over the page. */
export type Shown = "sheet" | "palette";

export interface Shortcut {
  keys: string;
  words: string;
  part: "Anywhere" | "Go to" | "Lists" | "A job";
  deed: Deed;
}

/** Where words are looked for, on the page and not in a dialog over it. */
export const SEARCH = "main input[type=search]:not(dialog *)";

export const TABLE: readonly Shortcut[] = [
  { keys: "?", words: "Show all keys", part: "Anywhere", deed: { kind: "show", what: "sheet" } },
  { keys: ".", words: "Actions on this page", part: "Anywhere", deed: { kind: "show", what: "palette" } },
  { keys: "/", words: "Filter or search", part: "Anywhere", deed: { kind: "focus", at: SEARCH } },
  { keys: "Escape", words: "Leave the filter; press again to clear it", part: "Anywhere", deed: { kind: "clear", at: SEARCH } },
  { keys: "t", words: "Switch charts to tables and back", part: "Anywhere", deed: { kind: "press", at: "main [data-view=table]" } },
  { keys: "g j", words: "Jobs", part: "Go to", deed: page("/jobs") },
  { keys: "g c", words: "Cluster", part: "Go to", deed: page("/cluster") },
  { keys: "g e", words: "Experiments", part: "Go to", deed: page("/experiments") },
  { keys: "g s", words: "Settings", part: "Go to", deed: page("/settings") },
  { keys: "g n", words: "Submit a new job", part: "Go to", deed: page("/submit") },
  { keys: "j", words: "Next row", part: "Lists", deed: { kind: "move", by: 1 } },
  { keys: "k", words: "Previous row", part: "Lists", deed: { kind: "move", by: -1 } },
  { keys: "Enter", words: "Open the row", part: "Lists", deed: { kind: "open" } },
  { keys: "o", words: "Overview", part: "A job", deed: view("overview") },
  { keys: "c", words: "Charts", part: "A job", deed: view("charts") },
  { keys: "n", words: "Knobs", part: "A job", deed: view("knobs") },
  { keys: "r", words: "Ranks", part: "A job", deed: view("ranks") },
  { keys: "l", words: "Logs", part: "A job", deed: view("logs") },
  { keys: "e", words: "Events", part: "A job", deed: view("events") },
  { keys: "s", words: "Stop or cancel it", part: "A job", deed: { kind: "press", at: verb("stop", "cancel") } },
  { keys: "p", words: "Pause or resume it", part: "A job", deed: { kind: "press", at: verb("pause", "resume") } },
];

/** The keys of what is found at an element; empty where it has none. */
export function keysOf(matches: (selector: string) => boolean): string {
  return TABLE.find(({ deed }) => deed.kind === "press" && matches(deed.at))?.keys ?? "";
}

/** A page is reached by its link in the bar; a page without one is not offered. */
function page(address: string): Deed {
  return { kind: "press", at: `header nav a[href="${address}"]` };
}

function view(name: string): Deed {
  return { kind: "press", at: `main nav a[data-view="${name}"]` };
}

function verb(...names: string[]): string {
  return names.map((name) => `main [data-verb="${name}"]`).join(", ");
}
