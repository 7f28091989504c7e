/** What is typed into fields, as values of a spec, and back. Pure. */

import type { Spec } from "../api/use-spec";
import type { Problem } from "../api/wire";

export interface Row {
  name: string;
  text: string;
}

export const VEIL = "(hidden)"; // stands for what is not shown
const SECRET = /token|secret|passw(or)?d|api[-_]?key|credential|access[-_]?key/i;

/** Return what is at a path. */
export function valueAt(spec: Spec, path: string): unknown {
  return path.split(".").reduce<unknown>((found, key) => (isMap(found) ? found[key] : undefined), spec);
}

/** Return the spec with another value at a path; an empty value, and a group left empty by it, are removed. */
export function put(spec: Spec, path: string, value: unknown): Spec {
  const [key = "", ...rest] = path.split(".");
  const inside = isMap(spec[key]) ? spec[key] : {};
  const next = rest.length ? put(inside, rest.join("."), value) : value;
  const isNothing = next === undefined || (rest.length > 0 && isMap(next) && Object.keys(next).length === 0);
  if (!isNothing) return { ...spec, [key]: next };
  return Object.fromEntries(Object.entries(spec).filter(([name]) => name !== key));
}

/** Return the number that is meant; what is none is left for the server to refuse. */
export function numberOf(text: string): unknown {
  if (!text.trim()) return undefined;
  const found = Number(text);
  return Number.isFinite(found) ? found : text;
}

/** Return the words of lines, one each. */
export function linesOf(text: string): string[] | undefined {
  const words = text.split("\n").filter(Boolean);
  return words.length ? words : undefined;
}

/** Return what rows of names and values mean; a value is JSON where it can be, unless all are text. */
export function mapOf(rows: readonly Row[], isText: boolean): Spec | undefined {
  const named = rows.filter(({ name }) => name.trim());
  if (!named.length) return undefined;
  return Object.fromEntries(named.map(({ name, text }) => [name.trim(), isText ? text : anyOf(text)]));
}

/** Return rows for what is there. */
export function rowsOf(value: unknown, isText: boolean): Row[] {
  if (!isMap(value)) return [];
  return Object.entries(value).map(([name, one]) => ({ name, text: isText ? String(one) : written(one) }));
}

/** Return a value as it is typed into a field. */
export function written(value: unknown): string {
  if (value === undefined || value === null) return "";
  if (typeof value !== "string") return JSON.stringify(value);
  return typeof anyOf(value) === "string" ? value : JSON.stringify(value); // "1" is a text, 1 a number
}

export function isSecret(name: string): boolean {
  return SECRET.test(name);
}

/** Return a spec that may be shown: values of variables that are secrets by their names are not in it. */
export function veiled(spec: Spec): Spec {
  return withEnv(spec, (name, value) => (isSecret(name) ? VEIL : value));
}

/** Return a spec whose hidden values are those of another one again. */
export function unveiled(spec: Spec, before: Spec): Spec {
  return withEnv(spec, (name, value) => (value === VEIL ? valueAt(before, "env") && envOf(before)[name] : value));
}

/** Return a spec to begin with, and the variables whose values have to be typed again. */
export function without(spec: Spec): [Spec, string[]] {
  const env = envOf(spec);
  const names = Array.isArray(spec.env) ? (spec.env as string[]) : Object.keys(env);
  const gone = names.filter((name) => isSecret(name) || !(name in env) || env[name] === VEIL);
  const kept = Object.entries(env).filter(([name]) => !gone.includes(name));
  return [put(spec, "env", kept.length ? Object.fromEntries(kept) : undefined), gone];
}

/** Return the problem of a field, or of something inside it. */
export function wrongOf(problem: Problem | null | undefined, path: string): string | null {
  const field = problem?.field;
  if (!problem || !field) return null;
  const isHere = field === path || field.startsWith(`${path}.`) || field.startsWith(`${path}[`);
  return isHere ? (problem.remedy ?? problem.detail) : null;
}

function anyOf(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}

function withEnv(spec: Spec, how: (name: string, value: unknown) => unknown): Spec {
  const env = envOf(spec);
  if (!Object.keys(env).length) return spec;
  return { ...spec, env: Object.fromEntries(Object.entries(env).map(([name, value]) => [name, how(name, value)])) };
}

function envOf(spec: Spec): Spec {
  return isMap(spec.env) ? spec.env : {};
}

function isMap(value: unknown): value is Spec {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
