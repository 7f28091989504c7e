import { expect, test } from "vitest";

import { askedOf } from "./filter";

test("a line is asked as it is written: labels, conditions on metrics, and words", () => {
  const line = " state:failed owner:ada tag:a:b loss<0.3  max:train/acc>=0.9 night gpt";

  expect(askedOf(line, "-last:loss")).toBe(
    new URLSearchParams([
      ["state", "FAILED"],
      ["owner", "ada"],
      ["tag", "a:b"],
      ["where", "loss<0.3"],
      ["where", "max:train/acc>=0.9"],
      ["text", "night gpt"],
      ["sort", "-last:loss"],
    ]).toString(),
  );
});

test("a label without a value, and an unknown one, are words", () => {
  expect(askedOf("owner: odd:x", "")).toBe("text=owner%3A+odd%3Ax");
  expect(askedOf("  ", "")).toBe("");
});
