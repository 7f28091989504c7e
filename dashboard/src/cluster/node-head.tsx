import type { Health } from "../api/wire";
import { Button } from "../ui/button";
import { FoldButton } from "./fold-button";
import { HealthMark } from "./health-mark";
import styles from "./row.module.css";
import { countsOf, type NodeRow } from "./weave";

interface Props {
  row: NodeRow;
  may: boolean;
  onTurn: () => void;
  onDrain: () => void;
}

/** A node above its devices: how many there are, how many of them how, and a way to empty it. */
export function NodeHead({ row: { node, devices, isOpen }, may, onTurn, onDrain }: Props) {
  const counts = countsOf(devices);
  const used = devices.filter(({ processes }) => processes.length > 0).length;
  const name = node.id || "no node";
  const bad = (["draining", "failed"] satisfies Health[]).filter((health) => counts[health] > 0);
  return (
    <div className={styles.head}>
      <FoldButton isOpen={isOpen} label={`Devices of ${name}`} onTurn={onTurn}>
        {name}
      </FoldButton>
      <p className={styles.soft}>
        {node.state === "up" ? null : <b className={styles.away}>{node.state}</b>}
        {bad.length ? null : (
          <span className={styles.count}>
            {devices.length} {devices.length === 1 ? "device" : "devices"}, {used} in use
          </span>
        )}
        {bad.map((health) => (
          <HealthMark key={health} health={health} count={counts[health]} />
        ))}
      </p>
      {may && devices.length > 0 ? (
        <Button className={styles.tool} aria-label={`Drain or recover ${name}`} data-testid="node-mark" data-node={node.id} onClick={onDrain}>
          {bad.length ? "Change" : "Drain"}
        </Button>
      ) : null}
    </div>
  );
}
