/** From what is typed to what is asked. Pure: a request, or what is wrong with which field. */

import type { CommandRequest, Knob, Verb } from "../api/wire";

export interface Form {
  verb: Verb;
  knob: string;
  value: string;
  hold: boolean;
  guard: string;
  at: string;
  release: boolean;
  workers: string;
  from: string;
  until: string;
  fromScratch: boolean;
  /** Whether the job had not ended when the dialog was opened: then only its pause is lifted. */
  unpause: boolean;
  command: string;
  reason: string;
}

export type Field = "value" | "at" | "workers" | "from" | "until";

export interface Read {
  request: CommandRequest | null;
  wrong: Partial<Record<Field, string>>;
}

export const EMPTY: Omit<Form, "verb"> = {
  ...{ knob: "", value: "", hold: false, guard: "", at: "", release: false },
  ...{ workers: "", from: "", until: "", fromScratch: false, unpause: false, command: "", reason: "" },
};

type Value = string | number | boolean;

/** Return the request of a form, or null with what is wrong; an empty value is not wrong yet. */
export function read(form: Form, knobs: readonly Knob[]): Read {
  const wrong: Read["wrong"] = {};
  const count = (field: "at" | "workers" | "from" | "until", least: number) => {
    const text = form[field].trim();
    if (!text) return undefined;
    if (/^\d{1,15}$/.test(text) && Number(text) >= least) return Number(text);
    wrong[field] = `A whole number, ${least} or more.`;
    return undefined;
  };
  const request: CommandRequest = { verb: form.verb };
  const reason = form.reason.trim();
  if (reason) request.reason = reason;
  if (form.verb !== "resume" && form.verb !== "cancel") put(request, "at", count("at", 0));
  if (form.verb === "pause" && form.release) request.release = true;
  if (form.verb === "undo" && form.command) request.command = form.command;
  if (form.verb === "resume") {
    put(request, "workers", count("workers", 1));
    put(request, "from_step", count("from", 0));
    put(request, "until", count("until", 1));
    if (form.fromScratch) request.from_scratch = true;
    if (form.unpause) request.unpause = true;
  }
  if (form.verb === "resize") put(request, "workers", count("workers", 1));
  const isWhole = isSaid(request) && (form.verb !== "set" || putValue(request, form, knobs, wrong));
  return { request: isWhole && Object.keys(wrong).length === 0 ? request : null, wrong };
}

/** Return a knob's value as its type wants it, or why the text is none. */
export function valueOf(text: string, knob: Knob): { value: Value } | { wrong: string } {
  const trimmed = text.trim();
  if (knob.type === "str") return { value: text };
  if (knob.type === "bool") {
    return /^(true|false)$/i.test(trimmed) ? { value: /^true$/i.test(trimmed) } : { wrong: "Write true or false." };
  }
  if (knob.type === "json") return jsonOf(trimmed);
  const value = Number(trimmed);
  if (!trimmed || !Number.isFinite(value)) return { wrong: "Write a number, such as 0.03 or 3e-4." };
  if (knob.type === "int" && !Number.isInteger(value)) return { wrong: "Write a whole number." };
  if (knob.low !== null && value < knob.low) return { wrong: `At least ${knob.low}.` };
  if (knob.high !== null && value > knob.high) return { wrong: `At most ${knob.high}.` };
  return { value };
}

/** Return what a knob takes, in words. */
export function rangeOf({ type, low, high }: Knob): string {
  const words = { float: "a number", int: "a whole number", bool: "true or false", str: "text", json: "JSON" }[type];
  if (low !== null && high !== null) return `${words}, ${low} to ${high}`;
  if (low !== null) return `${words}, at least ${low}`;
  return high === null ? words : `${words}, at most ${high}`;
}

/** Return the plain value that JSON reads; what JSON does not know is a text, as `loom set` has it. */
function jsonOf(text: string): ReturnType<typeof valueOf> {
  try {
    const found: unknown = JSON.parse(text);
    if (typeof found === "object") return { wrong: "Lists and objects are set with: loom set" };
    return { value: found as Value };
  } catch {
    return { value: text };
  }
}

/** The new number of ranks is required; every other field may be empty. */
function isSaid(request: CommandRequest): boolean {
  return request.verb !== "resize" || request.workers !== undefined;
}

function putValue(request: CommandRequest, form: Form, knobs: readonly Knob[], wrong: Read["wrong"]): boolean {
  const knob = knobs.find(({ name }) => name === form.knob);
  if (!knob || !form.value.trim()) return false;
  const found = valueOf(form.value, knob);
  if ("wrong" in found) {
    wrong.value = found.wrong;
    return false;
  }
  request.values = { [knob.name]: found.value };
  if (form.hold) request.hold = true;
  if (form.guard.trim()) request.guard = form.guard.trim();
  return true;
}

function put(request: CommandRequest, name: "at" | "workers" | "from_step" | "until", value: number | undefined): void {
  if (value !== undefined) request[name] = value;
}
