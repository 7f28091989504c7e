import { CopyLine } from "./copy-line";
import { Icon } from "./icon";
import styles from "./outlook.module.css";
import { Trouble } from "./trouble";

interface Props {
  /** What will happen, a line each; none until it is known. */
  lines: readonly string[];
  warnings?: readonly string[];
  refused?: { detail: string; remedy?: string | null } | null | undefined;
  /** The same in a shell. */
  command?: string | undefined;
  /** What to say while nothing is known. */
  hint: string;
}

/** What would happen, before anything does; and the command that does the same in a shell. */
export function Outlook({ lines, warnings = [], refused, command, hint }: Props) {
  return (
    <section className={styles.outlook} aria-label="What will happen" aria-live="polite" data-testid="preview">
      <h3>What will happen</h3>
      {refused ? <Trouble detail={refused.detail} remedy={refused.remedy} /> : null}
      {lines.length === 0 && !refused ? <p className={styles.soft}>{hint}</p> : null}
      {refused ? null : lines.map((line) => <p key={line}>{line}</p>)}
      {warnings.map((warning) => (
        <p key={warning} className={styles.warning}>
          <Icon name="alert" size={14} /> {warning}
        </p>
      ))}
      {command ? <CopyLine text={command} label="Copy the equivalent loom command" /> : null}
    </section>
  );
}
