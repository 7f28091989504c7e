/** A knob's past and present, by the commands that changed it. Pure. */

import type { Command, Knob } from "../api/wire";
import { namesOf } from "./outcome";

export interface Share {
  value: unknown;
  ranks: number[];
}

/** Return the commands that change a knob, the newest first. */
export function changesOf(knob: Knob, commands: readonly Command[]): Command[] {
  return commands.filter((command) => command.kind === "knob" && namesOf(command).includes(knob.name)).reverse();
}

/** Return the change that is in force: the newest that all ranks have. */
export function inForce(changes: readonly Command[]): Command | undefined {
  return changes.find(({ state }) => state === "applied");
}

/** Return which ranks have which value, where they differ; nothing where all have the same. */
export function sharesOf(knob: Knob, changes: readonly Command[]): Share[] {
  const change = inForce(changes);
  const reported = change ? change.ranks.map(({ rank, after }) => [rank, ofKnob(after, change, knob)] as const) : [];
  const known = reported.filter(([, value]) => value != null);
  const own = (knob.values ?? []).map((value, at) => [knob.ranks[at] ?? at, value] as const);
  const shares = new Map<string, Share>();
  for (const [rank, value] of known.length ? known : own) {
    const key = JSON.stringify(value);
    shares.set(key, { value, ranks: [...(shares.get(key)?.ranks ?? []), rank] });
  }
  return shares.size > 1 ? [...shares.values()] : [];
}

/** A change of one knob has the bare value, a change of several has a value for each. */
function ofKnob(reported: unknown, change: Command, knob: Knob): unknown {
  if (namesOf(change).length === 1) return reported;
  return reported && typeof reported === "object" ? (reported as Record<string, unknown>)[knob.name] : undefined;
}
