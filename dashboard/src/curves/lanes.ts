/** The timeline as rows of marks: what is near each other in a row is one mark. Pure. */

import type { Curve, Entry, EntryKind } from "../api/wire";
import type { View } from "../charts/chart-options";
import { type Axis, xsOf } from "../charts/data/columns";
import { placeOf } from "./places";

export interface Mark {
  key: string;
  x: number;
  entries: Entry[];
}

export interface Lane {
  name: string;
  /** What is in it. */
  about: string;
  marks: Mark[];
}

const LANES: readonly { name: string; about: string; kinds: readonly EntryKind[] }[] = [
  { name: "Knobs", about: "Changes of knobs", kinds: ["knob"] },
  { name: "Checkpoints", about: "Checkpoints saved, restored, removed", kinds: ["checkpoint"] },
  { name: "Recoveries", about: "Restarts and live recoveries", kinds: ["restart", "recovery"] },
  { name: "Ranks", about: "Ranks and nodes that joined or left", kinds: ["rank", "node"] },
  { name: "Other", about: "Alerts, states, commands and everything else", kinds: ["alert", "state", "command", "event"] },
];
const NEAR = 16; // pixels: nearer marks would lie upon each other

/** Return the rows of a timeline for the part of the axis that is in view. */
export function lanesOf(
  entries: readonly Entry[],
  axis: Axis,
  curve: Curve | undefined,
  view: View,
): Lane[] {
  const scale = view.max > view.min ? view.width / (view.max - view.min) : 0;
  const [least, most] = boundsOf(view, curve && xsOf(curve, axis));
  return LANES.map(({ name, about, kinds }) => {
    const placed = entries
      .filter((entry) => kinds.includes(entry.kind))
      .flatMap((entry) => {
        const at = placeOf(entry, axis, curve);
        if (at === null || at < least || at > most) return [];
        const seen = Math.min(view.max, Math.max(view.min, at));
        return [{ entry, x: (seen - view.min) * scale }];
      })
      .sort((a, b) => a.x - b.x);
    return { name, about, marks: joined(placed) };
  });
}

/** An end of the axis that is in view has all that lies beyond it: before the first step, just now. */
function boundsOf(view: View, xs: readonly number[] = []): [number, number] {
  const [first, last] = [xs[0] ?? view.min, xs.at(-1) ?? view.max];
  return [view.min <= first ? -Infinity : view.min, view.max >= last ? Infinity : view.max];
}

function joined(placed: readonly { entry: Entry; x: number }[]): Mark[] {
  const marks: Mark[] = [];
  for (const { entry, x } of placed) {
    const last = marks.at(-1);
    if (last && x - last.x < NEAR) last.entries.push(entry);
    else marks.push({ key: entry.key, x, entries: [entry] });
  }
  return marks;
}
