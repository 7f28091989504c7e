import { useMemo, useState } from "react";

import { useLive } from "../api/use-live";
import type { Entry, EntryKind } from "../api/wire";
import { Button } from "../ui/button";
import { Icon, type IconName } from "../ui/icon";
import { Panel, Skeleton } from "../ui/panel";
import { clock, whole } from "../ui/text/format";
import styles from "./entry-list.module.css";
import { shownOf, withSaves } from "./happened";

/** What happened, line by line: when, at which step, what, who and why. */
export function EntryList({ entries }: { entries: readonly Entry[] }) {
  return (
    <ol className={styles.list}>
      {entries.map((entry) => (
        <li key={entry.key} data-testid="timeline-entry" data-kind={entry.kind} data-what={entry.what} data-failure={entry.is_failure || undefined}>
          <EntryIcon kind={entry.kind} />
          <span className={styles.title}>
            {entry.rank === null || entry.title.includes("rank") ? "" : `rank ${entry.rank}: `}
            {entry.title}
            {entry.author ? <span> by {entry.author}</span> : null}
            {entry.reason && !entry.title.includes(entry.reason) ? <span>: {entry.reason}</span> : null}
          </span>
          <span className={styles.when}>
            {entry.step === null ? "" : `step ${whole(entry.step)} · `}
            <time dateTime={entry.time} title={new Date(entry.time).toLocaleString()}>
              {clock(entry.time)}
            </time>
          </span>
        </li>
      ))}
    </ol>
  );
}

const ICONS: Record<EntryKind, IconName> = {
  knob: "knob",
  command: "play",
  checkpoint: "checkpoint",
  restart: "recovery",
  recovery: "recovery",
  rank: "rank",
  node: "node",
  alert: "alert",
  state: "state",
  event: "circle",
};

/** The shape and colour of a kind of happening. */
export function EntryIcon({ kind }: { kind: EntryKind }) {
  return (
    <span className={styles.icon} data-kind={kind}>
      <Icon name={ICONS[kind]} size={14} />
    </span>
  );
}

const FIRST = 12;
const MORE = 100;

/** What happened to a job, the newest first; failures are listed however long ago they were. */
export function History({ job }: { job: string }) {
  const { value } = useLive({ topic: "timeline", job, limit: 500 });
  const [most, setMost] = useState(FIRST);
  const items = value?.items;
  const lines = useMemo(() => withSaves(items ?? []), [items]);
  return (
    <Panel title="What happened">
      {!items ? <Skeleton height={120} /> : null}
      {items?.length === 0 ? <p>Nothing yet.</p> : null}
      <EntryList entries={shownOf(lines, most)} />
      {lines.length > most ? (
        <Button tone="quiet" onClick={() => setMost(most + MORE)}>
          Show earlier ones
        </Button>
      ) : null}
    </Panel>
  );
}
