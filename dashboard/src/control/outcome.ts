/** What became of a command, in words. Pure. */

import type { Command } from "../api/wire";
import { shown, whole } from "../ui/text/format";

export interface Outcome {
  tone: "busy" | "good" | "bad";
  words: string;
  more: string;
}

const GOOD = ["applied", "done"];
const BAD = ["refused", "aborted", "failed", "expired", "cancelled"];

/** Return how a command stands. */
export function outcomeOf(command: Command): Outcome {
  const at = command.effective_step === null ? "" : ` at step ${whole(command.effective_step)}`;
  const words = `${titleOf(command)}: ${command.state.replaceAll("_", " ")}${at}`;
  if (GOOD.includes(command.state)) return { tone: "good", words, more: "" };
  if (BAD.includes(command.state)) return { tone: "bad", words, more: command.outcome };
  return { tone: "busy", words, more: command.outcome };
}

/** Return what was asked: `lr 0.1 → 0.02`, `pause`. */
export function titleOf(command: Command): string {
  if (command.kind !== "knob") return command.kind;
  const names = namesOf(command);
  const [before, after] = [command.before, command.after];
  if (names.length !== 1) return `knobs ${names.join(", ")}`;
  return before == null && after == null ? `${names[0]}` : `${names[0]} ${shown(before)} → ${shown(after)}`;
}

/** Return which knobs a command changes. */
export function namesOf({ payload }: Command): string[] {
  if (!payload || typeof payload !== "object") return ["knob"];
  const { values, name } = payload as { values?: Record<string, unknown>; name?: unknown };
  if (values) return Object.keys(values);
  return typeof name === "string" ? [name] : ["knob"];
}
