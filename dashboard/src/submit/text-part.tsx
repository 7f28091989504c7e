import { useState } from "react";

import { Area, Field } from "../ui/field";
import { shown } from "../ui/text/format";
import { HINTS } from "./hints";
import type { Part } from "./parts";
import { linesOf, numberOf } from "./values";

interface Props {
  part: Part;
  value: unknown;
  wrong: string | null;
  onChange: (value: unknown) => void;
}

/** A text, a number, or words line by line. What is typed stays as it is while it means the value. */
export function TextPart({ part, value, wrong, onChange }: Props) {
  const [typed, setTyped] = useState("");
  const text = isSame(meant(part, typed), value) ? typed : textOf(value);
  const common = {
    ...{ label: labelOf(part), hint: HINTS[part.path], wrong, value: text, "data-path": part.path },
    ...{ placeholder: usually(part), required: part.isRequired && part.name === part.path },
    onChange: (event: { target: { value: string } }) => {
      setTyped(event.target.value);
      onChange(meant(part, event.target.value));
    },
  };
  if (part.kind === "list") return <Area {...common} rows={Math.min(8, Math.max(2, text.split("\n").length))} />;
  return <Field {...common} inputMode={part.kind === "number" ? "decimal" : "text"} autoComplete="off" />;
}

function labelOf({ name, path, isRequired }: Part): string {
  const words = name.replaceAll("_", " ");
  return isRequired && name === path ? `${words} (required)` : words;
}

function meant({ kind }: Part, text: string): unknown {
  if (kind === "list") return linesOf(text);
  return kind === "number" ? numberOf(text) : text || undefined;
}

function textOf(value: unknown): string {
  if (Array.isArray(value)) return value.map(String).join("\n");
  if (value === undefined || value === null) return "";
  return typeof value === "string" ? value : JSON.stringify(value);
}

function usually({ usual, kind }: Part): string {
  return kind === "list" || usual === null || usual === "" ? "" : shown(usual);
}

function isSame(a: unknown, b: unknown): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}
