import { NOTHING, whole } from "../ui/format";
import { Panel } from "../ui/panel";
import { TableHead } from "../ui/table-head";
import type { EndedRank } from "./data";
import styles from "./report-table.module.css";

const HEADS = ["Rank", "Role", "State", "Step", "Exit", "Node", "Devices"];

/** Every rank: where it was, how far it came, how it ended. */
export function RankTable({ ranks }: { ranks: readonly EndedRank[] }) {
  return (
    <Panel title={ranks.length === 1 ? "1 rank" : `${ranks.length} ranks`}>
      <div className={styles.scroll}>
        <table className={styles.table} aria-label="Ranks">
          <TableHead heads={HEADS} />
          <tbody>
            {ranks.map((rank) => (
              <tr key={`${rank.role} ${rank.rank}`} data-testid="rank">
                <th scope="row">{rank.rank}</th>
                <td>{rank.role}</td>
                <td>{[rank.state, rank.reason].filter(Boolean).join(", ")}</td>
                <td>{whole(rank.step)}</td>
                <td>{rank.exit_code ?? NOTHING}</td>
                <td>{rank.node || NOTHING}</td>
                <td>{rank.device_uuids.join(", ") || NOTHING}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Panel>
  );
}
