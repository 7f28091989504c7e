import { useState, type SubmitEvent } from "react";

import type { Knob } from "../api/wire";
import { Button } from "../ui/button";
import styles from "./knob-change.module.css";
import { KnobEditor } from "./knob-editor";
import { valueOf } from "./request";

/** A new value for one knob; what it would do is shown before anything is asked. */
export function KnobChange({ knob, onSet }: { knob: Knob; onSet: (value: string) => void }) {
  const [text, setText] = useState("");
  const isSaid = text.trim() !== "";
  const found = isSaid ? valueOf(text, knob) : null;
  const wrong = found && "wrong" in found ? found.wrong : undefined;
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    onSet(text);
    setText(""); // the dialog has it now
  };
  return (
    <form className={styles.change} onSubmit={submit} aria-label={`Change ${knob.name}`}>
      <KnobEditor knob={knob} value={text} wrong={wrong} called="knob-input" onChange={setText} />
      <Button type="submit" disabled={!isSaid || wrong !== undefined} data-testid="knob-change">
        Apply
      </Button>
    </form>
  );
}
