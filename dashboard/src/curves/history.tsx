import { useMemo, useState } from "react";

import { useLive } from "../api/use-live";
import { Button } from "../ui/button";
import { Panel } from "../ui/panel";
import { Skeleton } from "../ui/skeleton";
import { EntryList } from "./entry-list";
import { shownOf, withSaves } from "./happened";

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
