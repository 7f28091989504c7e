import { Icon } from "../ui/icon";
import { labelOf } from "./marks";
import styles from "./row.module.css";
import type { RankRow } from "./weave";

/** A rank, and on which devices it is. */
export function RankLine({ row: { rank, devices } }: { row: RankRow }) {
  const on = devices.map((device) => `${device.node} ${labelOf(device)}`).join(", ");
  return (
    <div className={styles.line} data-testid="cluster-rank" data-process={rank.id} data-state={rank.state} title={`${rank.id}\n${on}${rank.reason ? `\n${rank.reason}` : ""}`}>
      <Icon name="rank" size={12} />
      <span className={styles.label}>rank {rank.rank}</span>
      <span className={styles.more}>{rank.replica}</span>
      <span className={styles.state}>{rank.state}</span>
      <span className="unseen">on {on || "no device"}</span>
    </div>
  );
}
