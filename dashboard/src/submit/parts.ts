/** The fields of a form, made from the schema of a spec that the server has. Pure. */

import type { Schema, Schemas } from "../api/use-spec";

export type Kind = "text" | "number" | "flag" | "choice" | "list" | "map" | "group";

/** One field, or a group of them. */
export interface Part {
  path: string;
  name: string;
  kind: Kind;
  isRequired: boolean;
  /** What goes without saying. */
  usual: unknown;
  /** Of a choice. */
  options: readonly string[];
  /** Of a group. */
  parts: readonly Part[];
  /** Whether values of a map are text, whatever they look like. */
  isText: boolean;
}

export interface Section {
  title: string;
  parts: Part[];
}

const SECTIONS: readonly (readonly [title: string, names: readonly string[]])[] = [
  ["What runs", ["name", "script", "module", "command", "args", "framework", "model", "dataset"]],
  ["Values", ["hyperparameters", "knobs", "env", "seed"]],
  ["Workers", ["resources", "distributed", "elastic", "max_workers", "priority", "scheduler", "options"]],
  ["Saving and recovery", ["checkpointing", "recovery", "compression"]],
  ["Labels", ["project", "group", "tags"]],
];
const REST = "More";
const REF = "#/components/schemas/";

/** Return the form of a job by parts; parts unknown to this page come last. */
export function sectionsOf(schemas: Schemas): Section[] {
  const { properties = {}, required = [] } = schemas.JobSpec ?? {};
  const part = (name: string) => partOf(name, name, properties[name] ?? {}, schemas, required.includes(name));
  const known = SECTIONS.flatMap(([, names]) => names);
  const rest = Object.keys(properties).filter((name) => !known.includes(name));
  return [...SECTIONS, [REST, rest] as const]
    .map(([title, names]) => ({ title, parts: names.filter((name) => name in properties).map(part) }))
    .filter(({ parts }) => parts.length > 0);
}

function partOf(name: string, path: string, given: Schema, schemas: Schemas, isRequired: boolean): Part {
  const schema = plain(given, schemas);
  const inside = Object.entries(schema.properties ?? {}).map(([key, one]) =>
    partOf(key, `${path}.${key}`, one, schemas, schema.required?.includes(key) ?? false),
  );
  const values = typeof schema.additionalProperties === "object" ? schema.additionalProperties : {};
  return {
    ...{ path, name, isRequired, kind: kindOf(schema), usual: given.default ?? null },
    ...{ options: schema.enum ?? [], parts: inside, isText: values.type === "string" },
  };
}

function kindOf(schema: Schema): Kind {
  if (schema.enum) return "choice";
  if (schema.properties) return "group";
  switch (schema.type) {
    case "integer":
    case "number":
      return "number";
    case "boolean":
      return "flag";
    case "array":
      return "list";
    case "object":
      return "map";
    default:
      return "text";
  }
}

/** Return a schema itself: what a name stands for, and what is there besides nothing. */
function plain(schema: Schema, schemas: Schemas): Schema {
  const [only] = schema.anyOf?.filter((one) => one.type !== "null") ?? [];
  if (only) return plain(only, schemas);
  return schema.$ref ? plain(schemas[schema.$ref.replace(REF, "")] ?? {}, schemas) : schema;
}
