import { expect, test } from "vitest";

import { commandFor } from "./command";

test("the command names the file and goes to the folder, quoted where a shell needs it", () => {
  expect(commandFor("night", "")).toBe("loom submit night.yaml");
  expect(commandFor("", "/data/my runs")).toBe("cd '/data/my runs' && loom submit job.yaml");
});
