/** Lines as rows: a traceback is one row, and the same traceback of several ranks is one, too. Pure. */

import type { LogLine } from "../api/wire";

export interface LineRow {
  kind: "line";
  key: string;
  line: LogLine;
}

export interface TraceRow {
  kind: "trace";
  key: string;
  /** As the first of the ranks printed it. */
  lines: LogLine[];
  ranks: number[];
}

export type Row = LineRow | TraceRow;

const BEGINS = /^(?:\[[^\]]*\]:?\s?)?Traceback \(most recent call last\):/;
const WHO = /^\[(?:default|rank)?\d+\]:?\s?/; // launchers put a rank before each line
const ADDRESS = /0x[0-9a-f]+/g; // of objects: others in every process

/** Return rows in the order of lines; a traceback stands where the first of its ranks began it. */
export function folded(lines: readonly LogLine[]): Row[] {
  const rows: (Row | null)[] = [];
  const open = new Map<string, { row: TraceRow; at: number }>();
  const known = new Map<string, TraceRow>();
  for (const line of lines) {
    const output = `${line.role}\n${line.rank}\n${line.stream}`;
    const text = plain(line.message);
    const block = open.get(output);
    if (block && (isInside(text) || block.row.lines.length === 1)) {
      block.row.lines.push(line);
    } else if (block) {
      block.row.lines.push(line); // what was raised: the last line
      open.delete(output);
      if (join(known, block.row)) rows[block.at] = null;
    } else if (BEGINS.test(line.message)) {
      const row: TraceRow = { kind: "trace", key: line.key, lines: [line], ranks: [line.rank] };
      open.set(output, { row, at: rows.push(row) - 1 });
    } else {
      rows.push({ kind: "line", key: line.key, line });
    }
  }
  return rows.filter((row) => row !== null);
}

/** Return what a traceback raised, as far as it is known. */
export function raised({ lines }: TraceRow): string {
  return plain(lines.at(-1)?.message ?? "");
}

/** Return a line without the rank that a launcher put before it. */
function plain(message: string): string {
  return message.replace(WHO, "");
}

function isInside(text: string): boolean {
  return text === "" || /^\s/.test(text);
}

/** Put a traceback to the same one of other ranks; a rank that raises it again begins another. */
function join(known: Map<string, TraceRow>, row: TraceRow): boolean {
  const text = row.lines.map((line) => plain(line.message).replace(ADDRESS, "0x")).join("\n");
  const same = known.get(text);
  const mine = row.ranks[0] ?? -1;
  if (same && !same.ranks.includes(mine)) {
    same.ranks.push(mine);
    return true;
  }
  known.set(text, row);
  return false;
}
