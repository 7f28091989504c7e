import { type ReactNode, useMemo, useState } from "react";

import type { ClusterValue, Device, Health } from "../api/wire";
import { Button } from "../ui/button";
import { Icon } from "../ui/icon";
import { StateBadge } from "../ui/indicators";
import { Link } from "../ui/router";
import { bytes } from "../ui/text/format";
import { HealthMark } from "./health-mark";
import styles from "./loom.module.css";
import { labelOf, LOOKS, namesOf, processOf } from "./marks";
import rowStyles from "./row.module.css";
import { Threads } from "./threads";
import { countsOf, HEAD, healthOf, type JobRow, type NodeRow, type RankRow, ROW, weave } from "./weave";

interface Props {
  value: ClusterValue;
  may: boolean;
  turned: ReadonlySet<string>;
  onTurn: (key: string) => void;
  onDevice: (uuid: string) => void;
  onNode: (host: string) => void;
}

/** Devices by node on the left, ranks by job on the right, a thread from each to each that has it. */
export function Loom({ value, may, turned, onTurn, onDevice, onNode }: Props) {
  const [touched, setTouched] = useState("");
  const woven = useMemo(() => weave(value, turned), [value, turned]);
  const names = useMemo(() => namesOf(value.jobs), [value.jobs]);
  const placed = (key: string, top: number, height: number, inside: ReactNode) => (
    <li
      key={key}
      data-row
      style={{ top, height }}
      onMouseEnter={() => setTouched(key)}
      onMouseLeave={() => setTouched("")}
      onFocus={() => setTouched(key)}
      onBlur={() => setTouched("")}
    >
      {inside}
    </li>
  );
  return (
    <div className={styles.loom} style={{ height: woven.height }} data-testid="loom">
      <ul aria-label="Devices by node">
        {woven.left.map((row) =>
          row.kind === "node"
            ? placed(row.key, row.top, HEAD, <NodeHead row={row} may={may} onTurn={() => onTurn(row.key)} onDrain={() => onNode(row.node.id)} />)
            : placed(row.key, row.top, ROW, <DeviceLine device={row.device} names={names} onOpen={() => onDevice(row.device.uuid)} />),
        )}
      </ul>
      <Threads threads={woven.threads} height={woven.height} touched={touched} />
      <ul aria-label="Ranks by job">
        {woven.right.map((row) =>
          row.kind === "job"
            ? placed(row.key, row.top, HEAD, <JobHead row={row} onTurn={() => onTurn(row.key)} />)
            : placed(row.key, row.top, ROW, <RankLine row={row} />),
        )}
        {woven.right.length === 0 ? <li className={styles.idle}>No rank uses any of them now.</li> : null}
      </ul>
    </div>
  );
}

interface DeviceLineProps {
  device: Device;
  names: ReadonlyMap<string, string>;
  onOpen: () => void;
}

/** A device: what it is and how it is; it opens to all that is known of it. */
function DeviceLine({ device, names, onOpen }: DeviceLineProps) {
  const health = healthOf(device);
  const users = device.processes.map((id) => processOf(id, names)).join(", ") || "no rank";
  return (
    <button
      type="button"
      className={rowStyles.line}
      data-testid="device"
      data-uuid={device.uuid}
      data-state={health}
      aria-label={`${labelOf(device)} of ${device.node || "no node"}, ${LOOKS[health].word}, ${users}`}
      title={`${device.uuid}\n${users}${device.reason ? `\n${device.reason}` : ""}`}
      onClick={onOpen}
    >
      <span className={rowStyles.label}>{labelOf(device)}</span>
      <span className={rowStyles.more}>{device.memory ? bytes(device.memory) : device.processes.length ? "" : "idle"}</span>
      <HealthMark health={health} />
    </button>
  );
}

/** A rank, and on which devices it is. */
function RankLine({ row: { rank, devices } }: { row: RankRow }) {
  const on = devices.map((device) => `${device.node} ${labelOf(device)}`).join(", ");
  return (
    <div className={rowStyles.line} data-testid="cluster-rank" data-process={rank.id} data-state={rank.state} title={`${rank.id}\n${on}${rank.reason ? `\n${rank.reason}` : ""}`}>
      <Icon name="rank" size={12} />
      <span className={rowStyles.label}>rank {rank.rank}</span>
      <span className={rowStyles.more}>{rank.replica}</span>
      <span className={rowStyles.state}>{rank.state}</span>
      <span className="unseen">on {on || "no device"}</span>
    </div>
  );
}

/** A job above its ranks. */
function JobHead({ row: { job, ranks, isOpen }, onTurn }: { row: JobRow; onTurn: () => void }) {
  const name = job.name || job.id;
  return (
    <div className={rowStyles.head}>
      <FoldButton isOpen={isOpen} label={`Ranks of ${name}`} onTurn={onTurn}>
        {name}
      </FoldButton>
      <p className={rowStyles.soft}>
        <Link href={`/jobs/${encodeURIComponent(job.id)}`} aria-label={`Open ${name}`}>
          Open
        </Link>
        <span className={rowStyles.count}>
          {ranks.length} {ranks.length === 1 ? "rank" : "ranks"}
          {job.owner ? `, ${job.owner}` : ""}
        </span>
      </p>
      <span className={rowStyles.tool}>{job.state ? <StateBadge state={job.state} /> : null}</span>
    </div>
  );
}

interface NodeHeadProps {
  row: NodeRow;
  may: boolean;
  onTurn: () => void;
  onDrain: () => void;
}

/** A node above its devices: how many there are, how many of them how, and a way to empty it. */
function NodeHead({ row: { node, devices, isOpen }, may, onTurn, onDrain }: NodeHeadProps) {
  const counts = countsOf(devices);
  const used = devices.filter(({ processes }) => processes.length > 0).length;
  const name = node.id || "no node";
  const bad = (["draining", "failed"] satisfies Health[]).filter((health) => counts[health] > 0);
  return (
    <div className={rowStyles.head}>
      <FoldButton isOpen={isOpen} label={`Devices of ${name}`} onTurn={onTurn}>
        {name}
      </FoldButton>
      <p className={rowStyles.soft}>
        {node.state === "up" ? null : <b className={rowStyles.away}>{node.state}</b>}
        {bad.length ? null : (
          <span className={rowStyles.count}>
            {devices.length} {devices.length === 1 ? "device" : "devices"}, {used} in use
          </span>
        )}
        {bad.map((health) => (
          <HealthMark key={health} health={health} count={counts[health]} />
        ))}
      </p>
      {may && devices.length > 0 ? (
        <Button className={rowStyles.tool} aria-label={`Drain or recover ${name}`} data-testid="node-mark" data-node={node.id} onClick={onDrain}>
          {bad.length ? "Change" : "Drain"}
        </Button>
      ) : null}
    </div>
  );
}

interface FoldButtonProps {
  isOpen: boolean;
  label: string;
  onTurn: () => void;
  children: ReactNode;
}

/** The name of a group of rows, which folds them and opens them. */
function FoldButton({ isOpen, label, onTurn, children }: FoldButtonProps) {
  return (
    <button type="button" className={styles.fold} aria-expanded={isOpen} aria-label={label} onClick={onTurn}>
      <Icon name="back" size={12} />
      <span>{children}</span>
    </button>
  );
}
