import { useWindowVirtualizer } from "@tanstack/react-virtual";
import { useState } from "react";

import type { Entry } from "../api/wire";
import { useTop } from "../ui/hooks";
import { ColumnHeads } from "../ui/table";
import { EventLine } from "./event-line";
import styles from "./event-table.module.css";

const HEIGHT = 37; // of a line, as the style sheet has it
const HEADS = ["Time", "Step", "Kind", "What", "Who", "Why", "Rank"];

/** Happenings, the newest first; only those in view are in the page. */
export function EventTable({ entries }: { entries: readonly Entry[] }) {
  const [opened, setOpened] = useState("");
  const [margin, body] = useTop();
  const view = useWindowVirtualizer({
    count: entries.length,
    estimateSize: () => HEIGHT,
    getItemKey: (index) => entries[index]?.key ?? index,
    overscan: 12,
    scrollMargin: margin,
  });
  return (
    <div className={styles.table}>
      <ColumnHeads heads={HEADS} hidden />
      <ol
        ref={body}
        aria-label="Events"
        className={styles.body}
        style={{ height: view.getTotalSize() }}
      >
        {view.getVirtualItems().map(({ index, key, start }) => {
          const entry = entries[index];
          return entry ? (
            <li
              key={key}
              ref={view.measureElement}
              data-index={index}
              data-row
              className={styles.row}
              style={{ transform: `translateY(${start - margin}px)` }}
            >
              <EventLine
                entry={entry}
                isOpen={opened === entry.key}
                onToggle={() => setOpened(opened === entry.key ? "" : entry.key)}
              />
            </li>
          ) : null;
        })}
      </ol>
    </div>
  );
}
