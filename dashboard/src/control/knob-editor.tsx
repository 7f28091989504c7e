import type { Knob } from "../api/wire";
import { Choice } from "../ui/choice";
import { Field } from "../ui/field";
import { shown } from "../ui/format";
import styles from "./knob-editor.module.css";
import { rangeOf } from "./request";

interface Props {
  knob: Knob;
  value: string;
  wrong: string | undefined;
  /** What tests call the field. */
  called?: string;
  onChange: (value: string) => void;
}

/** A new value for a knob, as its type is: one of two, a number with its range, or a text. */
export function KnobEditor({ knob, value, wrong, called = "knob-value", onChange }: Props) {
  if (knob.type === "bool") {
    const options = [["", `as it is: ${shown(knob.value)}`], ["true", "true"], ["false", "false"]] as const;
    return <Choice label="New value" value={value} options={options} onChange={onChange} />;
  }
  const { low, high } = knob;
  const isNumber = knob.type === "int" || knob.type === "float";
  return (
    <div className={styles.editor}>
      <Field
        label="New value"
        data-testid={called}
        autoComplete="off"
        inputMode={knob.type === "int" ? "numeric" : "text"}
        placeholder={shown(knob.value)}
        hint={`Now ${shown(knob.value)}; ${rangeOf(knob)}`}
        wrong={wrong ?? null}
        value={value}
        onChange={(event) => onChange(event.target.value)}
      />
      {isNumber && low !== null && high !== null ? (
        <input
          className={styles.range}
          type="range"
          aria-label={`New value of ${knob.name}, ${low} to ${high}`}
          min={low}
          max={high}
          step={knob.type === "int" ? 1 : (high - low) / 200}
          value={Number(value || knob.value) || 0}
          onChange={(event) => onChange(shown(event.target.valueAsNumber))}
        />
      ) : null}
    </div>
  );
}
