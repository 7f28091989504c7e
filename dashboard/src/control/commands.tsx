import { useState } from "react";

import { useLive } from "../api/use-live";
import type { JobRow, Knob, Verb } from "../api/wire";
import { Panel } from "../ui/panel";
import { Skeleton } from "../ui/skeleton";
import { CommandDialog } from "./command-dialog";
import { CommandItem } from "./command-item";
import styles from "./commands.module.css";

const SHOWN = 10;

interface Props {
  job: JobRow;
  verbs: readonly Verb[];
  knobs: readonly Knob[];
}

/** What people asked of a job, the newest first, with what each rank answered. */
export function Commands({ job, verbs, knobs }: Props) {
  const { value } = useLive({ topic: "commands", job: job.id });
  const [undone, setUndone] = useState("");
  const items = (value?.items ?? []).slice(-SHOWN).reverse();
  return (
    <Panel title="Commands">
      {!value ? <Skeleton height={60} /> : null}
      {value?.items.length === 0 ? <p className={styles.soft}>Nobody has changed anything.</p> : null}
      <ol className={styles.list}>
        {items.map((command) => (
          <CommandItem key={command.id} command={command} mayUndo={verbs.includes("undo")} onUndo={setUndone} />
        ))}
      </ol>
      {undone ? (
        <CommandDialog job={job} verb="undo" knobs={knobs} command={undone} onClose={() => setUndone("")} />
      ) : null}
    </Panel>
  );
}
