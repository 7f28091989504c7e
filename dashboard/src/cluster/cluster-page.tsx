import { useMemo } from "react";

import { useLive } from "../api/use-live";
import { useMe } from "../api/use-me";
import { Panel } from "../ui/panel";
import { useWord } from "../ui/router";
import { Skeleton } from "../ui/skeleton";
import { Trouble } from "../ui/trouble";
import { ClusterDialog } from "./cluster-dialog";
import styles from "./cluster-page.module.css";
import { Legend } from "./legend";
import { Loom } from "./loom";
import { NoNodes } from "./no-nodes";
import { NodePanel } from "./node-panel";
import { QueuePanel } from "./queue-panel";

/** Nodes, devices and the ranks on them, live; what is not well, and what may be said of it. */
export function ClusterPage() {
  const { value, problem } = useLive({ topic: "cluster" });
  const me = useMe();
  const [words, setWords] = useWord("turn");
  const [device, setDevice] = useWord("device");
  const [node, setNode] = useWord("node");
  const turned = useMemo(() => new Set(words.split(",").filter(Boolean)), [words]);
  const may = me.data !== undefined && me.data.role !== "viewer";
  const turn = (key: string) => {
    const next = new Set(turned);
    if (!next.delete(key)) next.add(key);
    setWords([...next].join(","));
  };
  const close = () => {
    setDevice("");
    setNode("");
  };
  return (
    <div className={styles.page}>
      <title>Cluster · torchLoom</title>
      <h1>Cluster</h1>
      {problem ? (
        <Trouble detail={problem.detail} remedy={problem.remedy} />
      ) : !value ? (
        <Skeleton height={280} />
      ) : value.nodes.length === 0 ? (
        <NoNodes />
      ) : (
        <div className={styles.parts}>
          <Panel title="Devices and ranks" tools={<Legend devices={value.devices} />}>
            <Loom value={value} may={may} turned={turned} onTurn={turn} onDevice={setDevice} onNode={setNode} />
          </Panel>
          <div className={styles.side}>
            <NodePanel nodes={value.nodes} />
            <QueuePanel queue={value.queue} />
          </div>
          {device || node ? <ClusterDialog key={device || node} value={value} may={may} device={device} node={node} onClose={close} /> : null}
        </div>
      )}
    </div>
  );
}
