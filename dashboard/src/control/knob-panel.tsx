import { type SubmitEvent, useState } from "react";

import { useLive } from "../api/use-live";
import type { Command, JobRow, Knob, Verb } from "../api/wire";
import { Button } from "../ui/button";
import { Choice, Field } from "../ui/field";
import { Empty, Panel, Skeleton } from "../ui/panel";
import { CopyLine } from "../ui/text/copy";
import { ranks as spelled, shown, whole } from "../ui/text/format";
import { CommandDialog } from "./command-dialog";
import { CommandItem } from "./commands";
import commands from "./commands.module.css";
import styles from "./knob-panel.module.css";
import { changesOf, inForce, sharesOf } from "./knob-past";
import { rangeOf, valueOf } from "./request";

interface Props {
  job: JobRow;
  verbs: readonly Verb[];
  knobs: readonly Knob[];
}

type ClientMessage = { verb: "set"; change: { knob: string; value: string } } | { verb: "undo"; command: string };

/** Everything of a job that can be changed while it runs: what it is, since when, and what it was. */
export function KnobPanel({ job, verbs, knobs }: Props) {
  const { value } = useLive({ topic: "commands", job: job.id });
  const [asked, setAsked] = useState<ClientMessage | null>(null);
  if (knobs.length === 0) {
    return (
      <Empty title={job.ended_at ? "The job no longer has ranks" : "No rank has registered a knob yet"}>
        <p>A script registers a knob and reads its value at every step:</p>
        <CopyLine text={'run.knob("clip", 1.0, min=0.0, max=10.0)'} label="Copy the line" />
      </Empty>
    );
  }
  return (
    <section className={styles.knobs} aria-label="Knobs">
      {knobs.map((knob) => (
        <KnobCard
          key={knob.name}
          knob={knob}
          changes={value && changesOf(knob, value.items)}
          verbs={verbs}
          onSet={(text) => setAsked({ verb: "set", change: { knob: knob.name, value: text } })}
          onUndo={(command) => setAsked({ verb: "undo", command })}
        />
      ))}
      {asked ? <CommandDialog job={job} knobs={knobs} {...asked} onClose={() => setAsked(null)} /> : null}
    </section>
  );
}

interface KnobCardProps {
  knob: Knob;
  /** The newest first; undefined until they are known. */
  changes: Command[] | undefined;
  verbs: readonly Verb[];
  onSet: (value: string) => void;
  onUndo: (command: string) => void;
}

/** One knob: its value, a field for another one where this user may, and its history. */
export function KnobCard({ knob, changes, verbs, onSet, onUndo }: KnobCardProps) {
  const shares = sharesOf(knob, changes ?? []);
  const since = inForce(changes ?? [])?.effective_step ?? null;
  const tools = <span className={styles.soft}>{rangeOf(knob)}</span>;
  return (
    <div data-testid="knob" data-name={knob.name}>
      <Panel title={knob.name} tools={tools}>
        <p className={styles.value} data-testid="knob-now">
          {shares.length ? shares.map(({ value }) => shown(value)).join(" · ") : shown(knob.value)}
        </p>
        <p className={styles.soft}>
          {since === null ? "Unchanged" : `Since step ${whole(since)}`}, on ranks {spelled(knob.ranks)}
        </p>
        {shares.length ? (
          <ul className={styles.shares} aria-label={`Values of ${knob.name} by rank`}>
            {shares.map(({ value, ranks }) => (
              <li key={ranks[0]}>
                <b>{shown(value)}</b> on {spelled(ranks)}
              </li>
            ))}
          </ul>
        ) : null}
        {verbs.includes("set") ? <KnobChange knob={knob} onSet={onSet} /> : null}
        <h3 className={styles.past}>History</h3>
        {!changes ? <Skeleton height={40} /> : null}
        {changes?.length === 0 ? <p className={styles.soft}>It has not been changed.</p> : null}
        <ol className={`${commands.list ?? ""} ${styles.changes ?? ""}`}>
          {changes?.map((command) => (
            <CommandItem key={command.id} command={command} mayUndo={verbs.includes("undo")} onUndo={onUndo} />
          ))}
        </ol>
      </Panel>
    </div>
  );
}

/** A new value for one knob; what it would do is shown before anything is asked. */
function KnobChange({ knob, onSet }: { knob: Knob; onSet: (value: string) => void }) {
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

interface KnobEditorProps {
  knob: Knob;
  value: string;
  wrong: string | undefined;
  /** What tests call the field. */
  called?: string;
  onChange: (value: string) => void;
}

/** A new value for a knob, as its type is: one of two, a number with its range, or a text. */
export function KnobEditor({ knob, value, wrong, called = "knob-value", onChange }: KnobEditorProps) {
  if (knob.type === "bool") {
    const options = [["", `unchanged: ${shown(knob.value)}`], ["true", "true"], ["false", "false"]] as const;
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
