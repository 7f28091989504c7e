import { useWindowVirtualizer } from "@tanstack/react-virtual";
import { useMemo } from "react";

import type { Rank } from "../api/wire";
import { useMedia, useTop } from "../ui/hooks";
import { Empty, Panel } from "../ui/panel";
import { ColumnHeads } from "../ui/table";
import { NOTHING, span, whole } from "../ui/text/format";
import { type Standing, standings } from "./lag";
import styles from "./rank-grid.module.css";

const [TALL, SHORT] = [76, 40]; // heights of a line, as the style sheet has them
const HEADS = ["Rank", "State", "Step", "Behind", "Step time", "Phase", "Node", "Devices"];

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
        <p>Ranks appear here as they start. The state of a queued job shows what it waits for.</p>
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

/** One rank of the grid. */
function RankLine({ standing: { rank, behind, look }, top }: { standing: Standing; top: number }) {
  return (
    <div
      role="row"
      className={styles.line}
      style={{ transform: `translateY(${top}px)` }}
      data-testid="rank"
      data-rank={rank.rank}
      data-state={rank.state}
      data-look={look ? "yes" : "no"}
    >
      <b role="cell">{rank.rank}</b>
      <span role="cell" className={styles.state} title={look}>
        <i aria-hidden="true" />
        {rank.state}
        {look ? <em>{look}</em> : null}
      </span>
      <span role="cell">{whole(rank.step)}</span>
      <span role="cell">{behind ? whole(behind) : behind === 0 ? "" : NOTHING}</span>
      <span role="cell">{span(rank.step_seconds)}</span>
      <span role="cell">{rank.phase ?? NOTHING}</span>
      <span role="cell" title={`${rank.node}, pid ${rank.pid}`}>
        {rank.node}
      </span>
      <span role="cell" title={rank.device_uuids.join("\n")}>
        {rank.device_uuids.join(", ") || NOTHING}
      </span>
    </div>
  );
}
