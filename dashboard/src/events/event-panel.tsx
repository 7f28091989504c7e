import { useMemo } from "react";

import { useLive } from "../api/use-live";
import { Empty, Panel, Skeleton, Trouble } from "../ui/panel";
import { useWord } from "../ui/router";
import { EventFilter } from "./event-filter";
import styles from "./event-panel.module.css";
import { EventTable } from "./event-table";
import { fitting } from "./filter";

const MOST = 1000;

/** Everything that happened to a job, and what people did to it: who, when, why. */
export function EventPanel({ job }: { job: string }) {
  const { value, problem } = useLive({ topic: "timeline", job, limit: MOST });
  const [kind] = useWord("kind");
  const [by] = useWord("by");
  const [words] = useWord("q");
  const items = value?.items;
  const found = useMemo(
    () => fitting(items ?? [], { kind, words, byPeople: by === "people" }),
    [items, kind, words, by],
  );
  if (problem) return <Trouble detail={problem.detail} remedy={problem.remedy} />;
  if (!items) return <Skeleton height={240} />;
  return (
    <Panel title="Events">
      <EventFilter entries={items} />
      {items.length >= MOST ? (
        <p className={styles.note}>
          Only the newest events are shown. <code>loom show {job} --events</code> lists earlier ones,{" "}
          <code>loom inspect {job} audit</code> every command of a user.
        </p>
      ) : null}
      {found.length === 0 ? (
        <Empty title={items.length ? "No event matches" : "Nothing has happened yet"}>
          <p>{items.length ? "Try other words or another kind." : "Events of the job appear here as they happen."}</p>
        </Empty>
      ) : null}
      <EventTable entries={found} />
    </Panel>
  );
}
