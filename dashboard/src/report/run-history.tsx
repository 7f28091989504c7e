import { useState } from "react";

import type { Entry } from "../api/wire";
import { EntryList } from "../curves/entry-list";
import { Button } from "../ui/button";
import { Panel } from "../ui/panel";

const FIRST = 40;

/** Everything that happened to a run, the newest first. */
export function RunHistory({ entries }: { entries: readonly Entry[] }) {
  const [isWhole, setIsWhole] = useState(false);
  const shown = isWhole ? entries : entries.slice(-FIRST);
  return (
    <Panel title="What happened">
      {entries.length === 0 ? <p>Nothing that was noted.</p> : null}
      <EntryList entries={[...shown].reverse()} />
      {shown.length < entries.length ? (
        <Button tone="quiet" onClick={() => setIsWhole(true)}>
          Show all {entries.length}
        </Button>
      ) : null}
    </Panel>
  );
}
