import { useState } from "react";

import { useLive } from "../api/use-live";
import type { JobRow, Knob, Verb } from "../api/wire";
import { CopyLine } from "../ui/copy-line";
import { Empty } from "../ui/empty";
import { CommandDialog } from "./command-dialog";
import { KnobCard } from "./knob-card";
import styles from "./knob-panel.module.css";
import { changesOf } from "./knob-past";

interface Props {
  job: JobRow;
  verbs: readonly Verb[];
  knobs: readonly Knob[];
}

type Asked = { verb: "set"; change: { knob: string; value: string } } | { verb: "undo"; command: string };

/** Everything of a job that can be changed while it runs: what it is, since when, and what it was. */
export function KnobPanel({ job, verbs, knobs }: Props) {
  const { value } = useLive({ topic: "commands", job: job.id });
  const [asked, setAsked] = useState<Asked | null>(null);
  if (knobs.length === 0) {
    return (
      <Empty title={job.ended_at ? "No rank is there to be asked" : "No rank has told of a knob yet"}>
        <p>A script makes one, and reads its value at every step:</p>
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
