import type { Knob } from "../api/wire";
import { Choice } from "../ui/choice";
import { Field } from "../ui/field";
import styles from "./command-fields.module.css";
import { KnobEditor } from "./knob-editor";
import type { Form } from "./request";

const LR = /(^|[._/])lr$|learning_rate/; // a value that a schedule moves

interface Props {
  form: Form;
  knobs: readonly Knob[];
  wrong: string | undefined;
  onChange: (more: Partial<Form>) => void;
}

/** Which knob, its new value, and what may take it back. */
export function KnobFields({ form, knobs, wrong, onChange }: Props) {
  const knob = knobs.find(({ name }) => name === form.knob);
  const names = knobs.map(({ name }) => [name, name] as const);
  return (
    <>
      <div className={styles.pair}>
        <Choice label="Knob" value={form.knob} options={names} onChange={(name) => onChange({ knob: name, value: "" })} />
        {knob ? (
          <KnobEditor knob={knob} value={form.value} wrong={wrong} onChange={(value) => onChange({ value })} />
        ) : null}
      </div>
      {LR.test(form.knob) ? (
        <label className={styles.tick}>
          <input type="checkbox" checked={form.hold} onChange={(event) => onChange({ hold: event.target.checked })} />
          <span>Hold it: a schedule no longer scales it</span>
        </label>
      ) : null}
      <Field
        label="Guard"
        placeholder="loss>1.5x"
        hint="Takes the change back if this holds within 200 steps; empty for none"
        value={form.guard}
        onChange={(event) => onChange({ guard: event.target.value })}
      />
    </>
  );
}
