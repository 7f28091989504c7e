/** The `loom` command that shows the same as a view. Pure: where one is goes in. */

import type { Route, Tab } from "./routes";

const STATES: Record<string, string> = { COMPLETED: "succeeded" }; // where the command line has another word

/** Return the command for a view and the words of its address; empty where there is none. */
export function sameOf(route: Route, words: URLSearchParams): string {
  if (route.page === "jobs") {
    const state = (words.get("state") ?? "").toUpperCase();
    return spelled("loom ls", state && `--state ${STATES[state] ?? state.toLowerCase()}`);
  }
  return route.page === "job" ? BY_TAB[route.tab](quoted(route.job), words) : "";
}

const BY_TAB: Record<Tab, (job: string, words: URLSearchParams) => string> = {
  overview: (job, words) => plot(job, [words.get("metric") ?? ""], words),
  charts: (job, words) => plot(job, (words.get("pin") ?? "").split(","), words),
  knobs: (job) => `loom set ${job}`,
  ranks: (job) => `loom show ${job}`,
  logs: (job, words) =>
    spelled(`loom logs ${job} -f`, option("ranks", words.get("ranks")), option("regex", words.get("regex"))),
  checkpoints: (job) => `loom checkpoint ls ${job}`,
  events: (job, words) => (words.get("by") === "people" ? `loom inspect ${job} audit` : `loom show ${job} --events`),
  spec: (job) => `loom show ${job} --spec`,
};

function plot(job: string, metrics: readonly string[], words: URLSearchParams): string {
  return spelled(
    `loom plot ${job}`,
    ...metrics.filter(Boolean).map(quoted),
    option("smooth", words.get("smooth")),
    words.get("x") === "time" ? "--by time" : "",
    words.get("rank") === "all" ? "--all-ranks" : "",
  );
}

function option(name: string, value: string | null): string {
  return value ? `--${name} ${quoted(value)}` : "";
}

function spelled(...parts: string[]): string {
  return parts.filter(Boolean).join(" ");
}

/** A word as a shell takes it whole. */
function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
