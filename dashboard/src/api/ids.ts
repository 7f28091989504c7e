/** What a subscription is called: the same wish, the same name. */

import type { Wish } from "./wire";

const LONGEST = 90; // letters; the server takes a hundred

/** Return a name that people can read, and that is short enough for the server. */
export function idOf(wish: Wish): string {
  const { topic, job, names, ranks, buckets, first, last, span, limit, level, regex } = wish;
  const range = first === undefined && last === undefined ? undefined : `${first ?? ""}..${last ?? ""}`;
  const more = [names?.join(","), ranks?.join(","), buckets, range, span, limit, level, regex];
  const name = [topic, job, ...more].filter((part) => part !== undefined).join(":");
  return name.length <= LONGEST ? name : `${name.slice(0, LONGEST - 9)}~${digest(name)}`;
}

/** FNV-1a: enough to tell some dozen names apart. */
function digest(text: string): string {
  let hash = 0x811c9dc5;
  for (let at = 0; at < text.length; at += 1) {
    hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193);
  }
  return (hash >>> 0).toString(16).padStart(8, "0");
}
