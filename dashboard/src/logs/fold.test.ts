import { expect, test } from "vitest";

import type { LogLine } from "../api/wire";
import { folded, raised, type Row } from "./fold";

let count = 0;
const line = (rank: number, message: string, stream: LogLine["stream"] = "stderr"): LogLine => ({
  ...{ key: `k${(count += 1)}`, time: null, rank, role: "trainer", stream, level: "error", message },
});
const trace = (rank: number, what = "ValueError: no", who = "") =>
  ["Traceback (most recent call last):", '  File "a.py", line 3, in <module>', "    f()", what].map((text) =>
    line(rank, who + text),
  );
const shown = (rows: Row[]) =>
  rows.map((row) => (row.kind === "line" ? row.line.message : `${row.ranks.join(",")} ${raised(row)}`));

test("the same traceback of several ranks is one row, where the first stood", () => {
  const lines = [line(0, "before"), ...trace(0), line(2, "between"), ...trace(1), ...trace(2), line(0, "after")];

  expect(shown(folded(lines))).toEqual(["before", "0,1,2 ValueError: no", "between", "after"]);
});

test("tracebacks that are printed at the same time are separated by their outputs", () => {
  const [a, b] = [trace(0), trace(1)];
  const mixed = a.flatMap((one, at) => [one, b[at] ?? one]);

  expect(shown(folded([...mixed, line(1, "on stdout", "stdout")]))).toEqual(["0,1 ValueError: no", "on stdout"]);
});

test("what a launcher puts before a line, and addresses, do not keep tracebacks apart", () => {
  const lines = [...trace(0, "Bad: <X at 0x7f01>", "[rank0]: "), ...trace(1, "Bad: <X at 0x7f02>", "[rank1]: ")];

  expect(shown(folded(lines))).toEqual(["0,1 Bad: <X at 0x7f01>"]);
});

test("other tracebacks, and those of one rank, stay apart", () => {
  const lines = [...trace(0), ...trace(1, "KeyError: 1"), ...trace(0), ...trace(1)];

  expect(shown(folded(lines))).toEqual(["0 ValueError: no", "1 KeyError: 1", "0,1 ValueError: no"]);
});

test("a traceback that is still being printed is shown as far as it has come", () => {
  const rows = folded([...trace(0), ...trace(1).slice(0, 2)]);

  expect(rows.map((row) => row.kind === "trace" && [row.ranks, row.lines.length])).toEqual([
    [[0], 4],
    [[1], 2],
  ]);
});
