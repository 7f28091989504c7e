import { useMemo, useState } from "react";

import type { Curve, Entry } from "../api/wire";
import type { View } from "../charts/chart-options";
import type { Axis } from "../charts/data/columns";
import { EntryList } from "./entry-list";
import { withSaves } from "./happened";
import { lanesOf, type Mark } from "./lanes";
import styles from "./timeline.module.css";

interface Props {
  entries: readonly Entry[] | undefined;
  axis: Axis;
  curve: Curve | undefined;
  view: View;
}

/** What happened, under the chart and on its axis: a row for each kind. */
export function Timeline({ entries, axis, curve, view }: Props) {
  const [open, setOpen] = useState("");
  const lines = useMemo(() => withSaves(entries ?? []), [entries]);
  const lanes = lanesOf(lines, axis, curve, view);
  const chosen = lanes.flatMap(({ marks }) => marks).find(({ key }) => key === open);
  return (
    <div className={styles.timeline} aria-label="Timeline" role="group" data-testid="timeline">
      {lanes.map(({ name, about, marks }) => (
        <div key={name} className={styles.lane} style={{ paddingLeft: view.left }}>
          <span className={styles.name} title={about}>
            {name}
          </span>
          <div className={styles.marks}>
            {marks.map((mark) => (
              <button
                key={mark.key}
                type="button"
                className={styles.mark}
                style={{ left: mark.x }}
                data-kind={mark.entries[0]?.kind}
                data-testid="timeline-mark"
                aria-expanded={mark.key === open}
                aria-label={named(mark)}
                title={named(mark)}
                onClick={() => setOpen(mark.key === open ? "" : mark.key)}
              >
                {mark.entries.length > 1 ? mark.entries.length : null}
              </button>
            ))}
          </div>
        </div>
      ))}
      {chosen ? <EntryList entries={chosen.entries} /> : null}
    </div>
  );
}

function named({ entries }: Mark): string {
  const titles = entries.slice(0, 4).map(({ title, author }) => (author ? `${title} (${author})` : title));
  const count = entries.length > 1 ? `${entries.length}: ` : ""; // what is written on it
  return count + titles.join("\n") + (entries.length > 4 ? `\nand ${entries.length - 4} more` : "");
}
