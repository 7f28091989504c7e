import type { CSSProperties } from "react";

import type { ClusterNode } from "../api/wire";
import { Icon } from "../ui/icon";
import { Panel } from "../ui/panel";
import { ColumnHeads } from "../ui/table";
import { bytes, NOTHING, whole } from "../ui/text/format";
import { Ago } from "../ui/text/time";
import styles from "./node-panel.module.css";

const HEADS = ["Node", "Cores", "Memory", "GPUs", "Workers", "Heartbeat"];
const COLUMNS = { "--columns": "minmax(64px, 1fr) 48px 128px 42px 60px 70px" } as CSSProperties;

/** The resources of each node, what is free, and the time of its last heartbeat. */
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

const MIB = 1_048_576;

/** One node of the list; of each thing what is free, and how much there is. */
function NodeLine({ node }: { node: ClusterNode }) {
  const { free } = node;
  const name = node.id || "no node";
  return (
    <div role="row" className={styles.line} data-testid="node" data-node={node.id} data-state={node.state}>
      <span role="cell" className={styles.name} title={node.reason || name}>
        <Icon name={node.state === "up" ? "node" : "alert"} size={14} />
        <b>{name}</b>
        {node.state === "up" ? null : <em>{node.state}</em>}
      </span>
      <span role="cell" data-head="Cores">
        {part(free?.cpus, node.cpus)}
      </span>
      <span role="cell" data-head="Memory">
        {node.memory_mb ? `${bytes((free?.memory_mb ?? 0) * MIB)} / ${bytes(node.memory_mb * MIB)}` : NOTHING}
      </span>
      <span role="cell" data-head="GPUs">
        {part(free?.gpus.length, node.gpus?.length)}
      </span>
      <span role="cell" data-head="Workers">
        {whole(node.workers)}
      </span>
      <span role="cell" data-head="Heartbeat">
        {node.heard_at ? <Ago time={node.heard_at} /> : node.state === "up" ? "now" : NOTHING}
      </span>
    </div>
  );
}

function part(free: number | undefined, all: number | null | undefined): string {
  return all == null ? NOTHING : `${whole(free ?? 0)} / ${whole(all)}`;
}
