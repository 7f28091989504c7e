import { useMemo, useState } from "react";

import type { Entry } from "../api/wire";
import { EntryList } from "../curves/entry-list";
import { shownOf, withSaves } from "../curves/happened";
import { Button } from "../ui/button";
import { Panel } from "../ui/panel";

const FIRST = 40;

/** Everything that happened to a run, the newest first. */
export function RunHistory({ entries }: { entries: readonly Entry[] }) {
  const [isWhole, setIsWhole] = useState(false);
  const lines = useMemo(() => withSaves(entries), [entries]);
  const shown = shownOf(lines, isWhole ? Infinity : FIRST);
  return (
    <Panel title="What happened">
      {entries.length === 0 ? <p>Nothing that was noted.</p> : null}
      <EntryList entries={shown} />
      {shown.length < lines.length ? (
        <Button tone="quiet" onClick={() => setIsWhole(true)}>
          Show all {lines.length}
        </Button>
      ) : null}
    </Panel>
  );
}
