import { expect, test } from "vitest";

import type { Schemas } from "../api/use-spec";
import { sectionsOf, type Part } from "./parts";

const ref = (name: string) => ({ $ref: `#/components/schemas/${name}` });
const schemas: Schemas = {
  JobSpec: {
    required: ["name"],
    properties: {
      novelty: { type: "boolean", default: false },
      env: { type: "object", additionalProperties: { type: "string" } },
      hyperparameters: { type: "object", additionalProperties: true },
      recovery: { ...ref("SpecRecovery"), default: { attempts: null } },
      args: { type: "array", items: { type: "string" }, default: [] },
      name: { type: "string" },
    },
  },
  SpecRecovery: {
    properties: {
      attempts: { anyOf: [{ type: "integer" }, { type: "null" }], default: null },
      policy: { anyOf: [ref("SpecPolicy"), { type: "null" }], default: null },
    },
  },
  SpecPolicy: { type: "string", enum: ["live", "fail"] },
};
const brief = ({ path, kind, isRequired }: Part) => [path, kind, isRequired];

test("a form has the fields of the schema, in an order for people, and what is new at its end", () => {
  const sections = sectionsOf(schemas);

  expect(sections.map(({ title, parts }) => [title, parts.map(brief)])).toEqual([
    ["What runs", [["name", "text", true], ["args", "list", false]]],
    ["Values", [["hyperparameters", "map", false], ["env", "map", false]]],
    ["Saving and recovery", [["recovery", "group", false]]],
    ["More", [["novelty", "flag", false]]],
  ]);
  expect(sections[1]?.parts.map(({ isText }) => isText)).toEqual([false, true]);
});

test("nested fields have paths as the server names them, and a choice has its options", () => {
  const [recovery] = sectionsOf(schemas)[2]?.parts ?? [];

  expect(recovery?.parts.map(brief)).toEqual([
    ["recovery.attempts", "number", false],
    ["recovery.policy", "choice", false],
  ]);
  expect(recovery?.parts[1]?.options).toEqual(["live", "fail"]);
});
