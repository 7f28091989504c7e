import { useMemo, useState, type ReactNode } from "react";

import type { ClusterValue } from "../api/wire";
import { DeviceLine } from "./device-line";
import { JobHead } from "./job-head";
import styles from "./loom.module.css";
import { namesOf } from "./marks";
import { NodeHead } from "./node-head";
import { RankLine } from "./rank-line";
import { Threads } from "./threads";
import { HEAD, ROW, weave } from "./weave";

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
