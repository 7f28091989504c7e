import { useState } from "react";

import type { ListedRun } from "../api/use-experiments";
import { worded } from "../charts/data/words";
import { Button } from "../ui/button";
import { Dialog } from "../ui/dialog";
import { Field } from "../ui/field";
import { useWord } from "../ui/router";
import styles from "./column-picker.module.css";
import { CONFIG, known, PLAIN, titleOf, WHICH } from "./columns";

interface Props {
  runs: readonly ListedRun[];
  columns: readonly string[];
  onClose: () => void;
}

/** Which columns the table has: facts of a run, what it was given, what came of it. */
export function ColumnPicker({ runs, columns, onClose }: Props) {
  const [word, setWord] = useWord("cols");
  const [words, setWords] = useState("");
  const { config, metrics } = known(runs);
  const groups: [string, string[]][] = [
    ["Run", Object.keys(PLAIN)],
    ["Config", config.map((name) => `${CONFIG}:${name}`)],
    ["Metrics", metrics.flatMap((name) => WHICH.map((which) => `${which}:${name}`))],
  ];
  const turn = (column: string) => {
    const next = columns.includes(column) ? columns.filter((one) => one !== column) : [...columns, column];
    setWord(worded(next));
  };
  return (
    <Dialog title="Columns" onClose={onClose}>
      <Field label="Find a column" type="search" value={words} onChange={(event) => setWords(event.target.value)} />
      {groups.map(([title, ids]) => {
        const found = ids.filter((id) => called(id).toLowerCase().includes(words.trim().toLowerCase()));
        return found.length ? (
          <fieldset key={title} className={styles.group}>
            <legend>{title}</legend>
            {found.map((id) => (
              <label key={id}>
                <input type="checkbox" checked={columns.includes(id)} onChange={() => turn(id)} />
                <span title={called(id)}>{called(id)}</span>
              </label>
            ))}
          </fieldset>
        ) : null;
      })}
      <div className={styles.ends}>
        <Button tone="quiet" disabled={!word} onClick={() => setWord("")}>
          Reset
        </Button>
        <Button tone="main" onClick={onClose}>
          Done
        </Button>
      </div>
    </Dialog>
  );
}

function called(id: string): string {
  return id.startsWith("last:") ? `${titleOf(id)}, last` : titleOf(id);
}
