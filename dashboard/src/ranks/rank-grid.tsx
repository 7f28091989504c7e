import { useWindowVirtualizer } from "@tanstack/react-virtual";
import { useMemo } from "react";

import type { Rank } from "../api/wire";
import { ColumnHeads } from "../ui/column-heads";
import { Empty } from "../ui/empty";
import { Panel } from "../ui/panel";
import { useMedia } from "../ui/use-media";
import { useTop } from "../ui/use-top";
import { standings } from "./lag";
import styles from "./rank-grid.module.css";
import { RankLine } from "./rank-line";

const [TALL, SHORT] = [76, 40]; // heights of a line, as the style sheet has them
const HEADS = ["Rank", "State", "Step", "Behind", "A step takes", "Phase", "Node", "Devices"];

/** Every rank: where it is, how far, how fast; only those in view are in the page. */
export function RankGrid({ ranks }: { ranks: readonly Rank[] }) {
  const lines = useMemo(() => standings(ranks), [ranks]);
  const [margin, body] = useTop();
  const height = useMedia("(max-width: 760px)") ? TALL : SHORT;
  const view = useWindowVirtualizer({
    count: lines.length,
    estimateSize: () => height,
    overscan: 12,
    scrollMargin: margin,
  });
  if (lines.length === 0) {
    return (
      <Empty title="No rank has reported yet">
        <p>Ranks come here as they start; of a job that waits, its state says what it waits for.</p>
      </Empty>
    );
  }
  return (
    <Panel title={`${lines.length} ranks`}>
      <div role="table" aria-label="Ranks" aria-rowcount={lines.length + 1} className={styles.table}>
        <ColumnHeads heads={HEADS} />
        <div ref={body} role="rowgroup" className={styles.body} style={{ height: lines.length * height }}>
          {view.getVirtualItems().map(({ index, key }) => {
            const line = lines[index];
            return line ? <RankLine key={key} standing={line} top={index * height} /> : null;
          })}
        </div>
      </div>
    </Panel>
  );
}
