/** Users, tokens and how long things are kept, in words. Pure. */

import type { Retention, Token, User } from "../api/use-people";

export type TokenState = "good" | "over" | "revoked";

const DAY = 86_400;
const MAY: Record<User["role"], string> = {
  viewer: "may read jobs, metrics, logs, devices",
  operator: "may also submit and control jobs, and report devices",
  admin: "may also manage users",
};

export const ROLES: readonly (readonly [User["role"], string])[] = [
  ["viewer", "viewer: reads"],
  ["operator", "operator: submits and steers jobs"],
  ["admin", "admin: also manages users"],
];

/** Return whether a token lets its user in at a time in milliseconds. */
export function stateOf(token: Token, now: number): TokenState {
  if (token.revoked_at) return "revoked";
  return token.expires_at && new Date(token.expires_at).getTime() <= now ? "over" : "good";
}

/** Return those that count, or all, the newest first. */
export function shownOf(tokens: readonly Token[], all: boolean, now: number): Token[] {
  return tokens.filter((token) => all || stateOf(token, now) === "good").reverse();
}

/** Return what becomes of a user. */
export function userLines(name: string, role: User["role"], disabled: boolean, known: User | undefined): string[] {
  if (disabled) return [`${name} cannot sign in: tokens and cookies are refused at once, open pages within seconds.`];
  const lines = [`${name} ${MAY[role]}.`];
  if (!known) lines.push("They sign in with a link or a token; create one next.");
  else if (known.disabled) lines.push("Tokens that have not expired are valid again.");
  return lines;
}

export function userCommand(name: string, role: User["role"], disabled: boolean, known: User | undefined): string {
  const more = disabled ? " --disable" : known?.disabled ? " --enable" : "";
  return `loom tokens user ${name} --role ${role}${more}`;
}

/** Return the seconds of a number of days, or what is wrong with it; empty means no expiry. */
export function secondsOf(days: string): { seconds: number | null } | { wrong: string } {
  const text = days.trim();
  if (!text) return { seconds: null };
  const value = Number(text);
  return value >= 0.001 && value <= 3650 ? { seconds: value * DAY } : { wrong: "A number of days, 3650 at most." };
}

export function tokenCommand(user: string, label: string, days: string): string {
  const more = [label ? ` --label ${quoted(label)}` : "", days.trim() ? ` --days ${days.trim()}` : ""];
  return `loom tokens add ${user}${more.join("")}`;
}

/** Return what goes when, a line each. */
export function retentionLines(kept: Retention): [name: string, value: string][] {
  const lines: [string, number | null][] = [
    ["Ended runs", kept.runs],
    ["Their metrics", kept.metrics],
    ["Their logs", kept.logs],
    ["Stacks and dumps", kept.dumps],
  ];
  const found = lines.map(([name, age]): [string, string] => [name, age === null ? "kept forever" : `removed after ${ageOf(age)}`]);
  if (lines.every(([, age]) => age === null)) return found;
  const pinned = kept.pinned.length ? `, and ${kept.pinned.join(", ")}` : "";
  return [...found, ["Always kept", `the ${kept.keep} that ended last${pinned}`]];
}

function ageOf(seconds: number): string {
  const units: [string, number][] = [
    ["week", 7 * DAY],
    ["day", DAY],
    ["hour", 3600],
    ["minute", 60],
  ];
  const [name, size] = units.find(([, one]) => seconds >= one && seconds % one === 0) ?? ["minute", 60];
  const count = Math.round((seconds / size) * 100) / 100;
  return `${count} ${name}${count === 1 ? "" : "s"}`;
}

function quoted(text: string): string {
  return /^[\w.@+-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}
