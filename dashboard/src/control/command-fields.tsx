import type { JobRow, Knob } from "../api/wire";
import { Choice, Field } from "../ui/field";
import styles from "./command-fields.module.css";
import { KnobEditor } from "./knob-panel";
import type { Form, Read } from "./request";

interface Props {
  job: JobRow;
  form: Form;
  knobs: readonly Knob[];
  wrong: Read["wrong"];
  onChange: (more: Partial<Form>) => void;
}

/** The fields of a verb, and its reason. */
export function CommandFields({ job, form, knobs, wrong, onChange }: Props) {
  const isOver = job.ended_at !== null;
  const hasStep = form.verb !== "resume" && form.verb !== "cancel";
  return (
    <>
      {form.verb === "set" ? <KnobFields form={form} knobs={knobs} wrong={wrong.value} onChange={onChange} /> : null}
      {form.verb === "pause" ? (
        <label className={styles.tick}>
          <input
            type="checkbox"
            checked={form.release}
            onChange={(event) => onChange({ release: event.target.checked })}
          />
          <span>Save, end the ranks and release their devices</span>
        </label>
      ) : null}
      {form.verb === "resume" && isOver ? (
        <label className={styles.tick}>
          <input
            type="checkbox"
            data-testid="from-scratch"
            checked={form.fromScratch}
            onChange={(event) => onChange({ fromScratch: event.target.checked })}
          />
          <span>Start over if there is no checkpoint</span>
        </label>
      ) : null}
      {form.verb === "resume" && isOver ? (
        <Field
          label="Until step"
          inputMode="numeric"
          placeholder="end of the program"
          hint="How far to train; a completed job is extended"
          value={form.until}
          wrong={wrong.until ?? null}
          onChange={(event) => onChange({ until: event.target.value })}
        />
      ) : null}
      {form.verb === "resume" && isOver ? (
        <div className={styles.pair}>
          <Field
            label="Workers"
            inputMode="numeric"
            placeholder={String(job.world_size ?? "as before")}
            hint="How many from now on"
            value={form.workers}
            wrong={wrong.workers ?? null}
            onChange={(event) => onChange({ workers: event.target.value })}
          />
          <Field
            label="From step"
            inputMode="numeric"
            placeholder="newest"
            hint="The checkpoint to resume from"
            value={form.from}
            wrong={wrong.from ?? null}
            onChange={(event) => onChange({ from: event.target.value })}
          />
        </div>
      ) : null}
      {form.verb === "resize" ? (
        <Field
          label="Ranks"
          inputMode="numeric"
          placeholder={String(job.world_size ?? "how many")}
          hint="How many from now on"
          value={form.workers}
          wrong={wrong.workers ?? null}
          onChange={(event) => onChange({ workers: event.target.value })}
        />
      ) : null}
      <div className={hasStep ? styles.reason : undefined}>
        {hasStep ? (
          <Field
            label="At step"
            inputMode="numeric"
            placeholder="next"
            hint={job.step === null ? "" : `Now ${job.step}`}
            value={form.at}
            wrong={wrong.at ?? null}
            onChange={(event) => onChange({ at: event.target.value })}
          />
        ) : null}
        <Field
          label="Reason"
          data-testid="reason"
          placeholder="loss is flat"
          hint="Stored with the command"
          maxLength={1000}
          value={form.reason}
          onChange={(event) => onChange({ reason: event.target.value })}
        />
      </div>
    </>
  );
}

const LR = /(^|[._/])lr$|learning_rate/; // a value that a schedule moves

interface KnobFieldsProps {
  form: Form;
  knobs: readonly Knob[];
  wrong: string | undefined;
  onChange: (more: Partial<Form>) => void;
}

/** Which knob, its new value, and what may take it back. */
function KnobFields({ form, knobs, wrong, onChange }: KnobFieldsProps) {
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
          <span>Hold: schedules no longer scale the value</span>
        </label>
      ) : null}
      <Field
        label="Guard"
        placeholder="loss>1.5x"
        hint="Undoes the change if this becomes true within 200 steps; empty: no guard"
        value={form.guard}
        onChange={(event) => onChange({ guard: event.target.value })}
      />
    </>
  );
}
