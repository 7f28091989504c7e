import { useMemo } from "react";

import { useLive } from "../api/use-live";
import { useMe } from "../api/use-people";
import type { Device, Health, Queued } from "../api/wire";
import { Empty, Panel, Skeleton, Trouble } from "../ui/panel";
import { Link, useWord } from "../ui/router";
import { CopyLine } from "../ui/text/copy";
import { ClusterDialog } from "./cluster-dialog";
import styles from "./cluster-page.module.css";
import { HealthMark } from "./health-mark";
import { Loom } from "./loom";
import { NodePanel } from "./node-panel";
import { countsOf } from "./weave";

/** Nodes, devices and the ranks on them, live; what is unhealthy, and the reports on it. */
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

const ALL: readonly Health[] = ["healthy", "draining", "failed"];

/** What the threads mean, and how many devices are how. */
function Legend({ devices }: { devices: readonly Device[] }) {
  const counts = countsOf(devices);
  return (
    <ul className={styles.legend} aria-label="Devices by health">
      {ALL.map((health) => (
        <li key={health}>
          <svg width="34" height="8" aria-hidden="true" data-health={health}>
            <path d="M2 4H32" />
          </svg>
          <HealthMark health={health} count={counts[health]} />
        </li>
      ))}
    </ul>
  );
}

/** No node has come: what to do. */
function NoNodes() {
  return (
    <Empty title="No node has registered yet">
      <p>The plane starts an agent for its own machine. Check its state, and restart it if needed.</p>
      <CopyLine text="loom up --status" label="Copy the command" />
      <p>Nodes of other machines appear with the jobs that run there.</p>
    </Empty>
  );
}

/** Who waits, in the order of their turns, and for what. */
function QueuePanel({ queue }: { queue: readonly Queued[] }) {
  return (
    <Panel title="Queue">
      {queue.length === 0 ? <p className={styles.soft}>No job is waiting.</p> : null}
      <ol className={styles.list}>
        {queue.map(({ job, owner, position, priority, why }) => (
          <li key={job} data-testid="queued" data-job={job}>
            <b>{position}</b>
            <div>
              <p>
                <Link href={`/jobs/${encodeURIComponent(job)}`}>{job}</Link>{" "}
                <span className={styles.soft}>
                  {owner}
                  {priority ? `, priority ${priority}` : ""}
                </span>
              </p>
              <p className={styles.soft}>{why}</p>
            </div>
          </li>
        ))}
      </ol>
    </Panel>
  );
}
