import { useState } from "react";

import { Button } from "../ui/button";
import { Icon } from "../ui/icon";
import { HINTS } from "./hints";
import styles from "./map-part.module.css";
import type { Part } from "./parts";
import { isSecret, mapOf, rowsOf, type Row } from "./values";

interface Props {
  part: Part;
  value: unknown;
  wrong: string | null;
  onChange: (value: unknown) => void;
}

const BLANK: Row = { name: "", text: "" };

/** Names and values, a row each. */
export function MapPart({ part, value, wrong, onChange }: Props) {
  const [typed, setTyped] = useState<Row[]>([]);
  const { isText, name, path } = part;
  const isMine = JSON.stringify(mapOf(typed, isText)) === JSON.stringify(value ?? undefined);
  const rows = isMine ? typed : rowsOf(value, isText);
  const change = (next: Row[]) => {
    setTyped(next);
    onChange(mapOf(next, isText));
  };
  const set = (at: number, more: Partial<Row>) =>
    change(rows.map((row, index) => (index === at ? { ...row, ...more } : row)));
  const called = name.replaceAll("_", " ");
  return (
    <fieldset className={styles.map} data-path={path} aria-invalid={wrong !== null}>
      <legend>{called}</legend>
      {rows.map((row, at) => (
        <div key={at} className={styles.row}>
          <input
            aria-label={`Name in ${called}, ${at + 1}`}
            placeholder="name"
            value={row.name}
            onChange={(event) => set(at, { name: event.target.value })}
          />
          <input
            aria-label={`Value of ${row.name || `row ${at + 1}`} in ${called}`}
            placeholder="value"
            type={isText && isSecret(row.name) ? "password" : "text"}
            autoComplete="off"
            value={row.text}
            onChange={(event) => set(at, { text: event.target.value })}
          />
          <button
            type="button"
            aria-label={`Remove ${row.name || `row ${at + 1}`}`}
            onClick={() => change(rows.filter((_, index) => index !== at))}
          >
            <Icon name="close" size={14} />
          </button>
        </div>
      ))}
      <Button tone="quiet" data-testid={`add-${path}`} onClick={() => change([...rows, BLANK])}>
        Add to {called}
      </Button>
      <p className={wrong ? styles.wrong : styles.hint}>{wrong ?? HINTS[path]}</p>
    </fieldset>
  );
}
