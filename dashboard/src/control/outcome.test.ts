import { expect, test } from "vitest";

import type { Command } from "../api/wire";
import { outcomeOf } from "./outcome";

const command = (more: Partial<Command>) =>
  ({
    ...{ kind: "knob", payload: { name: "lr", value: 0.02 }, state: "accepted", outcome: "" },
    ...{ effective_step: null, before: null, after: null },
    ...more,
  }) as Command;

test("a change has both values, and at which step", () => {
  const applied = command({ state: "applied", effective_step: 1234, before: 0.1, after: 0.02 });

  expect(outcomeOf(applied)).toEqual({
    tone: "good",
    words: "lr 0.1 → 0.02: applied at step 1\u202f234",
    more: "",
  });
});

test("a refusal has its reason", () => {
  const refused = command({ kind: "pause", state: "refused", outcome: "ranks are not aligned" });

  expect(outcomeOf(refused)).toEqual({ tone: "bad", words: "pause: refused", more: "ranks are not aligned" });
});

test("what is under way is neither good nor bad", () => {
  const several = command({ payload: { values: { lr: 1, beta: 2 } } });

  expect(outcomeOf(several)).toEqual({ tone: "busy", words: "knobs lr, beta: accepted", more: "" });
});
