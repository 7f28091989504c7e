import { useState } from "react";

import type { Format } from "../api/use-spec";
import { Button } from "../ui/button";
import { Area, Chips } from "../ui/field";
import { Panel } from "../ui/panel";
import { copy, CopyLine } from "../ui/text/copy";
import styles from "./spec-text.module.css";

interface Props {
  text: string;
  format: Format;
  wrong: string | null;
  command: string;
  onFormat: (format: Format) => void;
  onChange: (text: string) => void;
}

const FORMATS: readonly [Format, string][] = [
  ["yaml", "YAML"],
  ["json", "JSON"],
];

/** The same spec as text: what is written here is in the form, and the other way round. */
export function SpecText({ text, format, wrong, command, onFormat, onChange }: Props) {
  const [copied, setCopied] = useState("");
  const chips = (
    <Chips label="Format">
      {FORMATS.map(([value, name]) => (
        <button key={value} type="button" aria-pressed={value === format} onClick={() => onFormat(value)}>
          {name}
        </button>
      ))}
    </Chips>
  );
  return (
    <Panel title="As text" tools={chips}>
      <div className={styles.text}>
        <Area
          label="The spec, to edit or to copy"
          data-testid="spec-text"
          rows={Math.min(30, Math.max(10, text.split("\n").length + 1))}
          value={text}
          wrong={wrong}
          hint={`Changes here also change the form. Variables that look like secrets are not shown.`}
          onChange={(event) => onChange(event.target.value)}
        />
        <Button onClick={() => void copy(text).then((isDone) => setCopied(isDone ? text : ""))}>
          {text && copied === text ? "Copied" : "Copy the text"}
        </Button>
        <p>Saved as a file, this submits the same:</p>
        <CopyLine text={command} label="Copy the command" />
      </div>
    </Panel>
  );
}
