/** How numbers, times and spans are written, the same everywhere. */

export const NOTHING = "–";

/** Four digits that matter; powers of ten only where plain digits would not do. */
export function number(value: number | null | undefined): string {
  if (value == null || !Number.isFinite(value)) return NOTHING;
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-3 || size >= 1e7) return tidy(value.toExponential(3));
  if (Number.isInteger(value)) return whole(value);
  return tidy(size >= 1000 ? value.toFixed(1) : value.toPrecision(4));
}

/** A count, with a narrow space between thousands that no line breaks at. */
export function whole(value: number | null | undefined): string {
  if (value == null) return NOTHING;
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** A duration for people: 850 ms, 12 s, 4 min 10 s, 3 h 5 min, 2 d 4 h. */
export function span(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return NOTHING;
  if (seconds < 1) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 60) return `${seconds < 10 ? tidy(seconds.toFixed(1)) : Math.floor(seconds)} s`;
  const units: [string, number][] = [
    ["d", 86_400],
    ["h", 3_600],
    ["min", 60],
    ["s", 1],
  ];
  const at = units.findIndex(([, size]) => seconds >= size);
  const [big, small] = [units[at], units[at + 1]];
  if (!big) return NOTHING;
  const rest = seconds % big[1];
  const more = small && Math.floor(rest / small[1]) > 0 ? ` ${Math.floor(rest / small[1])} ${small[0]}` : "";
  return `${Math.floor(seconds / big[1])} ${big[0]}${more}`;
}

/** The coarsest word for an age: 3 h. */
export function age(seconds: number): string {
  if (seconds < 1) return "now";
  return span(seconds < 60 ? Math.floor(seconds) : seconds).split(" ").slice(0, 2).join(" ");
}

export function percent(part: number): string {
  const value = Math.min(1, Math.max(0, part)) * 100;
  return `${value < 10 || value > 99 ? tidy((Math.floor(value * 10) / 10).toFixed(1)) : Math.floor(value)} %`;
}

/** Bytes in the units that disks are sold in. */
export function bytes(value: number | null | undefined): string {
  if (value == null) return NOTHING;
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = Math.min(units.length - 1, value < 1 ? 0 : Math.floor(Math.log10(value) / 3));
  return `${tidy((value / 1000 ** power).toPrecision(3))} ${units[power] ?? ""}`;
}

/** How many a second, to three digits. */
export function rate(value: number | null | undefined): string {
  if (value == null || !Number.isFinite(value)) return NOTHING;
  if (value >= 1e6) return `${tidy((value / 1e6).toPrecision(3))} M`;
  if (value >= 1e4) return `${tidy((value / 1e3).toPrecision(3))} k`;
  return tidy(value.toPrecision(3));
}

/** The time of day here, to the second. */
export function clock(time: string | number): string {
  return new Date(time).toLocaleTimeString([], { hour12: false });
}

/** The day and the time of day here. */
export function date(time: string | number): string {
  const at = new Date(time);
  return Number.isNaN(at.getTime()) ? NOTHING : at.toLocaleString([], { hour12: false });
}

/** A value of a knob as one would type it. */
export function shown(value: unknown): string {
  if (value == null) return NOTHING;
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(6)));
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** Ranks as people write them: 0-3,7. */
export function ranks(numbers: readonly number[]): string {
  const parts: [number, number][] = [];
  for (const rank of [...new Set(numbers)].sort((a, b) => a - b)) {
    const last = parts.at(-1);
    if (last?.[1] === rank - 1) last[1] = rank;
    else parts.push([rank, rank]);
  }
  return parts.map(([first, last]) => (first === last ? String(first) : `${first}-${last}`)).join(",");
}

function tidy(digits: string): string {
  const [mantissa = "", power] = digits.split("e");
  const short = mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa;
  return power === undefined ? short : `${short}e${power.replace("+", "")}`;
}
