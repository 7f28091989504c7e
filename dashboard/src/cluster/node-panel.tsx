import type { CSSProperties } from "react";

import type { ClusterNode } from "../api/wire";
import { ColumnHeads } from "../ui/column-heads";
import { Panel } from "../ui/panel";
import { NodeLine } from "./node-line";
import styles from "./node-panel.module.css";

const HEADS = ["Node", "Cores", "Memory", "GPUs", "Workers", "Heartbeat"];
const COLUMNS = { "--columns": "minmax(64px, 1fr) 48px 128px 42px 60px 70px" } as CSSProperties;

/** What each node has, what of it is free, and when it was heard last. */
export function NodePanel({ nodes }: { nodes: readonly ClusterNode[] }) {
  const up = nodes.filter(({ state }) => state === "up").length;
  return (
    <Panel title="Nodes" tools={<span className={styles.soft}>{`${up} of ${nodes.length} up; free / all`}</span>}>
      <div role="table" aria-label="Nodes" style={COLUMNS} className={styles.table}>
        <ColumnHeads heads={HEADS} />
        {nodes.map((node) => (
          <NodeLine key={node.id} node={node} />
        ))}
      </div>
    </Panel>
  );
}
