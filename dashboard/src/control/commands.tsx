import { useState } from "react";

import { useLive } from "../api/use-live";
import type { Command, CommandAck, JobRow, Knob, Verb } from "../api/wire";
import { Button } from "../ui/button";
import { Icon } from "../ui/icon";
import { Panel, Skeleton } from "../ui/panel";
import { whole } from "../ui/text/format";
import { Ago } from "../ui/text/time";
import commandAcksStyles from "./command-acks.module.css";
import { CommandDialog } from "./command-dialog";
import styles from "./commands.module.css";
import { type Outcome, outcomeOf } from "./outcome";
import outcomeLineStyles from "./outcome-line.module.css";

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
      {value?.items.length === 0 ? <p className={styles.soft}>No commands yet.</p> : null}
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

interface CommandItemProps {
  command: Command;
  mayUndo: boolean;
  onUndo: (id: string) => void;
}

/** One command of a job: its outcome, its author and reason, and the answer of each rank. */
export function CommandItem({ command, mayUndo, onUndo }: CommandItemProps) {
  const isUndoable = mayUndo && command.kind === "knob" && command.state === "applied";
  return (
    <li data-testid="command" data-state={command.state}>
      <div className={styles.head}>
        <OutcomeLine outcome={outcomeOf(command)} />
        {isUndoable ? (
          <Button tone="quiet" onClick={() => onUndo(command.id)}>
            Undo
          </Button>
        ) : null}
      </div>
      <p className={styles.soft}>
        {command.author}, <Ago time={command.asked_at} /> ago{command.reason ? `: ${command.reason}` : ""}
      </p>
      <details>
        <summary>{command.ranks.length} ranks answered</summary>
        <CommandAcks acks={command.ranks} />
      </details>
    </li>
  );
}

const ICONS = { busy: "clock", good: "check", bad: "alert" } as const;

/** How a command stands, in a line. */
export function OutcomeLine({ outcome: { tone, words, more } }: { outcome: Outcome }) {
  return (
    <div className={outcomeLineStyles.line} data-tone={tone} role="status">
      <Icon name={ICONS[tone]} />
      <div>
        <p>{words}</p>
        {more ? <p className={outcomeLineStyles.more}>{more}</p> : null}
      </div>
    </div>
  );
}

/** What each rank has answered so far. */
export function CommandAcks({ acks }: { acks: readonly CommandAck[] }) {
  if (acks.length === 0) return <p className={commandAcksStyles.none}>No rank has answered yet.</p>;
  return (
    <ul className={commandAcksStyles.acks} aria-label="Answers of ranks">
      {acks.map((ack) => (
        <li key={ack.rank} data-testid="ack" data-rank={ack.rank} data-state={ack.state}>
          <b>{ack.rank}</b> {ack.state}
          {ack.step === null ? "" : ` at ${whole(ack.step)}`}
        </li>
      ))}
    </ul>
  );
}
