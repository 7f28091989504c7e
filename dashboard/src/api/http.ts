/** One way to ask the server: JSON in, JSON out, and a `Refused` for whatever it refuses. */

import { sessionHeaders } from "./session";
import type { Problem } from "./wire";

export class Refused extends Error {
  constructor(readonly problem: Problem) {
    super(problem.detail);
  }
}

export interface Question {
  method?: "GET" | "POST" | "PUT" | "DELETE";
  body?: unknown;
  /** What is sent as it is, and what it is; instead of a body. */
  text?: { type: string; words: string };
  key?: string;
  signal?: AbortSignal;
}

/** Ask, and return what was answered. */
export async function ask<T>(path: string, { method = "GET", body, text, key, signal }: Question = {}): Promise<T> {
  const headers: Record<string, string> = { Accept: "application/json", ...sessionHeaders() };
  if (text) headers["Content-Type"] = text.type;
  else if (body !== undefined) headers["Content-Type"] = "application/json";
  if (key) headers["Idempotency-Key"] = key;
  const answer = await fetch(path, { method, headers, signal: signal ?? null, ...written(body, text?.words) }).catch(
    (error: unknown) => {
      throw signal?.aborted ? error : new Refused(UNREACHABLE);
    },
  );
  if (answer.status === 204) return undefined as T;
  const found: unknown = await answer.json().catch(() => null);
  if (!answer.ok) throw new Refused(problemOf(answer.status, found));
  return found as T;
}

/** Return what was wrong, whatever was thrown. */
export function explained(error: unknown): Problem {
  if (error instanceof Refused) return error.problem;
  return { status: 0, code: "bug", detail: error instanceof Error ? error.message : String(error) };
}

const UNREACHABLE: Problem = {
  status: 0,
  code: "unreachable",
  detail: "The plane does not answer.",
  remedy: "Check whether it is running: loom up --status",
};

function written(body: unknown, words?: string): { body?: string } {
  if (words !== undefined) return { body: words };
  return body === undefined ? {} : { body: JSON.stringify(body) };
}

function problemOf(status: number, found: unknown): Problem {
  if (found && typeof found === "object" && "detail" in found) return found as Problem;
  return { status, code: `http_${status}`, detail: `The server answered ${status}.` };
}

/** Return a key under which a request is done once, however often it is sent. */
export function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
