import type { Device } from "../api/wire";
import { bytes } from "../ui/format";
import { HealthMark } from "./health-mark";
import { labelOf, LOOKS, processOf } from "./marks";
import styles from "./row.module.css";
import { healthOf } from "./weave";

interface Props {
  device: Device;
  names: ReadonlyMap<string, string>;
  onOpen: () => void;
}

/** A device: what it is and how it is; it opens to all that is known of it. */
export function DeviceLine({ device, names, onOpen }: Props) {
  const health = healthOf(device);
  const users = device.processes.map((id) => processOf(id, names)).join(", ") || "no rank";
  return (
    <button
      type="button"
      className={styles.line}
      data-testid="device"
      data-uuid={device.uuid}
      data-state={health}
      aria-label={`${labelOf(device)} of ${device.node || "no node"}, ${LOOKS[health].word}, ${users}`}
      title={`${device.uuid}\n${users}${device.reason ? `\n${device.reason}` : ""}`}
      onClick={onOpen}
    >
      <span className={styles.label}>{labelOf(device)}</span>
      <span className={styles.more}>{device.memory ? bytes(device.memory) : device.processes.length ? "" : "idle"}</span>
      <HealthMark health={health} />
    </button>
  );
}
