import type { Entry } from "../api/wire";
import { Button } from "../ui/button";
import { Skeleton } from "../ui/panel";
import { number, shown, span, whole } from "../ui/text/format";
import { type Cause, causesOf } from "./causes-of";
import styles from "./causes.module.css";
import { EntryIcon } from "./entry-list";
import { withSaves } from "./happened";
import type { Picked } from "./moment";

interface Props {
  name: string;
  moment: Picked;
  entries: readonly Entry[] | undefined;
  onClose: () => void;
}

/** What changed before a place in a curve, the likeliest cause first. */
export function Causes({ name, moment, entries, onClose }: Props) {
  const found = entries && causesOf(withSaves(entries), moment);
  const value = moment.isNumber ? number(moment.value) : "NaN";
  return (
    <aside className={styles.causes} aria-label="What changed before" data-testid="causes">
      <header>
        <h3>
          What changed before step {whole(moment.step)} <span>({name} {value})</span>
        </h3>
        <Button tone="quiet" onClick={onClose}>
          Close
        </Button>
      </header>
      {!found ? <Skeleton height={60} /> : null}
      {found?.length === 0 ? <p>The plane has no event shortly before it.</p> : null}
      <ol>{found?.map((cause) => <CauseLine key={cause.entry.key} cause={cause} />)}</ol>
    </aside>
  );
}

function CauseLine({ cause: { entry, steps, seconds } }: { cause: Cause }) {
  const before = steps === null ? span(Math.max(0, seconds)) : steps === 1 ? "1 step" : `${whole(steps)} steps`;
  const hasValues = entry.before !== null && entry.after !== null;
  return (
    <li data-testid="cause" data-kind={entry.kind}>
      <EntryIcon kind={entry.kind} />
      <div>
        <p>
          {entry.title}
          {hasValues && !entry.title.includes(shown(entry.after)) ? (
            <span> {shown(entry.before)} → {shown(entry.after)}</span>
          ) : null}
        </p>
        <p className={styles.who}>
          {[entry.author && `by ${entry.author}`, entry.reason].filter(Boolean).join(": ")}
        </p>
      </div>
      <span className="number">{before} before</span>
    </li>
  );
}
