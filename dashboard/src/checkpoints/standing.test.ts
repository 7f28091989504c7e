import { expect, test } from "vitest";

import type { Checkpoint } from "../api/wire";
import { marksOf, standingOf, type State } from "./standing";

const saved = (step: number, state: State, bytes = 10): Checkpoint => ({
  ...{ job: "j", step, state, bytes, attempt: 1, generation: 0, world_size: 2, place: "/x", metrics: {} },
  ...{ trainer: "", path: "" },
  ...{ trigger: "schedule", reason: "", created_at: `t${step}`, committed_at: null, seconds: null },
});
const items = [saved(500, "writing"), saved(400, "damaged"), saved(300, "committed"), saved(100, "committed", 5)];

test("the newest committed one is usable; broken ones are named", () => {
  const { newest, usable, bytes, broken } = standingOf(items);

  expect([newest?.step, usable, bytes, broken.map(({ step }) => step)]).toEqual([300, 2, 15, [400]]);
});

test("without checkpoints none is usable", () => {
  expect(standingOf([])).toEqual({ newest: null, usable: 0, bytes: 0, broken: [] });
  expect(marksOf([])).toEqual([]);
});

test("marks stand where their steps are, from the first to the last", () => {
  expect(marksOf(items).map(({ step, place }) => [step, place])).toEqual([
    [100, 0],
    [300, 0.5],
    [400, 0.75],
    [500, 1],
  ]);
  expect(marksOf([saved(7, "failed")])[0]?.place).toBe(1);
});
