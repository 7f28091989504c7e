import type { Device, Health } from "../api/wire";
import { HealthMark } from "./health-mark";
import styles from "./legend.module.css";
import { countsOf } from "./weave";

const ALL: readonly Health[] = ["healthy", "draining", "failed"];

/** What the threads mean, and how many devices are how. */
export function Legend({ devices }: { devices: readonly Device[] }) {
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
