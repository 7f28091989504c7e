/** In which unit the numbers of a metric are shown, where its name reveals it. Pure. */

import type { Buckets, Curve } from "../../api/wire";

interface Unit {
  word: string;
  /** How much of what is logged is one of it. */
  size: number;
}

const MIB: Unit = { word: "MiB", size: 2 ** 20 };
const UNITS: readonly [RegExp, Unit][] = [
  [/^loom\/(device_)?memory$/, MIB], // ranks report their own memory in bytes
  [/(^|[/_.])bytes$/, MIB],
  [/^loom\/cpu$/, { word: "cores", size: 1 }],
  [/(^|[/_.])(seconds|secs)$/, { word: "s", size: 1 }],
  [/(^|[/_.])ms$/, { word: "ms", size: 1 }],
];

/** Return the name of the unit; nothing where a metric has none. */
export function unitOf(name: string): string {
  return found(name)?.word ?? "";
}

/** Return what an axis of a metric is called: the last part of its name, with the unit. */
export function axisName(name: string): string {
  const unit = unitOf(name);
  const short = name.slice(name.lastIndexOf("/") + 1);
  return unit ? `${short} (${unit})` : short;
}

/** Return a curve with its numbers in the unit that is shown. */
export function inUnit(curve: Curve): Curve {
  const size = found(curve.name)?.size ?? 1;
  if (size === 1) return curve;
  const divided = (values: readonly (number | null)[]) => values.map((value) => (value === null ? null : value / size));
  const scaled = <T extends Buckets>(one: T): T => ({
    ...one,
    ...{ min: divided(one.min), max: divided(one.max), last: divided(one.last) },
  });
  return { ...scaled(curve), replaced: curve.replaced.map(scaled) };
}

function found(name: string): Unit | undefined {
  return UNITS.find(([pattern]) => pattern.test(name))?.[1];
}
