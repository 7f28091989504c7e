import type { Command, Knob, Verb } from "../api/wire";
import { shown, ranks as spelled, whole } from "../ui/format";
import { Panel } from "../ui/panel";
import { Skeleton } from "../ui/skeleton";
import { CommandItem } from "./command-item";
import commands from "./commands.module.css";
import styles from "./knob-card.module.css";
import { KnobChange } from "./knob-change";
import { inForce, sharesOf } from "./knob-past";
import { rangeOf } from "./request";

interface Props {
  knob: Knob;
  /** The newest first; undefined until they are known. */
  changes: Command[] | undefined;
  verbs: readonly Verb[];
  onSet: (value: string) => void;
  onUndo: (command: string) => void;
}

/** One knob: its value, a field for another one where this user may, and its history. */
export function KnobCard({ knob, changes, verbs, onSet, onUndo }: Props) {
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
          {since === null ? "As it began" : `Since step ${whole(since)}`}, on ranks {spelled(knob.ranks)}
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
        {changes?.length === 0 ? <p className={styles.soft}>Nobody has changed it.</p> : null}
        <ol className={`${commands.list ?? ""} ${styles.changes ?? ""}`}>
          {changes?.map((command) => (
            <CommandItem key={command.id} command={command} mayUndo={verbs.includes("undo")} onUndo={onUndo} />
          ))}
        </ol>
      </Panel>
    </div>
  );
}
