import type { Command } from "../api/wire";
import { Ago } from "../ui/ago";
import { Button } from "../ui/button";
import { CommandAcks } from "./command-acks";
import styles from "./commands.module.css";
import { outcomeOf } from "./outcome";
import { OutcomeLine } from "./outcome-line";

interface Props {
  command: Command;
  mayUndo: boolean;
  onUndo: (id: string) => void;
}

/** One thing that somebody asked of a job: what came of it, who and why, and what each rank answered. */
export function CommandItem({ command, mayUndo, onUndo }: Props) {
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
