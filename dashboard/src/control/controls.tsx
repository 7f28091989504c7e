import { useState } from "react";

import type { JobRow, Knob, Verb } from "../api/wire";
import { Button } from "../ui/button";
import { Icon } from "../ui/icon";
import { CommandDialog } from "./command-dialog";
import styles from "./controls.module.css";
import { buttonsOf, VERBS } from "./verbs";

interface Props {
  job: JobRow;
  verbs: readonly Verb[];
  knobs: readonly Knob[];
}

/** What this user may ask of this job now, a button each; nothing that would be refused. */
export function Controls({ job, verbs, knobs }: Props) {
  const [open, setOpen] = useState<Verb | null>(null);
  const shown = buttonsOf(verbs).filter((verb) => verb !== "set" || knobs.length > 0);
  return (
    <div className={styles.controls} role="group" aria-label="Controls">
      {shown.map((verb) => (
        <Button
          key={verb}
          data-verb={verb}
          data-testid={verb === "set" ? "knob-edit" : `control-${verb}`}
          onClick={() => setOpen(verb)}
        >
          <Icon name={VERBS[verb].icon} /> {VERBS[verb].button}
        </Button>
      ))}
      {open ? <CommandDialog job={job} verb={open} knobs={knobs} onClose={() => setOpen(null)} /> : null}
    </div>
  );
}
