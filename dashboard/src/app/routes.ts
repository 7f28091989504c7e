/** Which page an address means. */

export type Tab = "overview" | "charts" | "knobs" | "ranks" | "logs" | "checkpoints" | "events" | "spec";

export type Route =
  | { page: "jobs" }
  | { page: "job"; job: string; tab: Tab }
  | { page: "experiments" }
  | { page: "compare" }
  | { page: "submit" }
  | { page: "cluster" }
  | { page: "settings" }
  | { page: "none" };

/** Pages of the server that are no part of the dashboard. */
export const OUTSIDE: readonly { href: string; name: string }[] = [
  { href: "/manual/", name: "Docs" },
  { href: "/docs", name: "API" },
];

const PAGES: Readonly<Record<string, Route>> = {
  experiments: { page: "experiments" },
  "experiments/compare": { page: "compare" },
  submit: { page: "submit" },
  cluster: { page: "cluster" },
  settings: { page: "settings" },
};
const TABS: readonly string[] = ["charts", "knobs", "ranks", "logs", "checkpoints", "events", "spec"];

export function routeOf(path: string): Route {
  const parts = path.split("/").filter(Boolean);
  const page = PAGES[parts.join("/")];
  if (page) return page;
  const [first, job, tab, ...more] = parts.map(plain);
  if (more.length) return { page: "none" };
  if (first === undefined || (first === "jobs" && job === undefined)) return { page: "jobs" };
  if (first !== "jobs" || job === undefined) return { page: "none" };
  if (tab === undefined) return { page: "job", job, tab: "overview" };
  return TABS.includes(tab) ? { page: "job", job, tab: tab as Tab } : { page: "none" };
}

function plain(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a stray percent sign: no job has this name, and the page shows that
  }
}
