import { expect, test } from "vitest";

import type { Command, Knob } from "../api/wire";
import { changesOf, inForce, sharesOf } from "./knob-past";

const lr: Knob = { name: "lr", value: 0.1, type: "float", low: 0, high: 1, ranks: [0, 1, 2] };
const command = (id: string, state: string, payload: unknown, ...after: unknown[]) =>
  ({ id, kind: "knob", state, payload, ranks: after.map((value, rank) => ({ rank, after: value })) }) as unknown as Command;
const one = { name: "lr", value: 0.02 };
const two = { values: { lr: 0.03, beta: 0.9 } };

test("a knob's changes are the commands that name it, the newest first", () => {
  const other = command("b", "applied", { name: "beta", value: 1 });
  const pause = { ...command("c", "applied", {}), kind: "pause" };
  const changes = changesOf(lr, [command("a", "applied", one), other, pause, command("d", "refused", two)]);

  expect(changes.map(({ id }) => id)).toEqual(["d", "a"]);
  expect(inForce(changes)?.id).toBe("a");
});

test("where ranks answered with one value there is nothing to distinguish", () => {
  expect(sharesOf(lr, [command("a", "applied", one, 0.02, 0.02, 0.02)])).toEqual([]);
  expect(sharesOf(lr, [])).toEqual([]);
});

test("ranks that differ are distinguished by their last answer", () => {
  const mixed = command("b", "applied", two, { lr: 0.03, beta: 1 }, { lr: 0.01, beta: 1 }, { lr: 0.03, beta: 1 });

  expect(sharesOf(lr, [command("c", "accepted", one), mixed, command("a", "applied", one, 1, 2, 3)])).toEqual([
    { value: 0.03, ranks: [0, 2] },
    { value: 0.01, ranks: [1] },
  ]);
});

test("before any change it is what each rank began with", () => {
  expect(sharesOf({ ...lr, values: [0.1, 0.1, 0.4] }, [])).toEqual([
    { value: 0.1, ranks: [0, 1] },
    { value: 0.4, ranks: [2] },
  ]);
});
