import { NOTHING, span, whole } from "../ui/format";
import type { Standing } from "./lag";
import styles from "./rank-line.module.css";

/** One rank of the grid. */
export function RankLine({ standing: { rank, behind, look }, top }: { standing: Standing; top: number }) {
  return (
    <div
      role="row"
      className={styles.line}
      style={{ transform: `translateY(${top}px)` }}
      data-testid="rank"
      data-rank={rank.rank}
      data-state={rank.state}
      data-look={look ? "yes" : "no"}
    >
      <b role="cell">{rank.rank}</b>
      <span role="cell" className={styles.state} title={look}>
        <i aria-hidden="true" />
        {rank.state}
        {look ? <em>{look}</em> : null}
      </span>
      <span role="cell">{whole(rank.step)}</span>
      <span role="cell">{behind ? whole(behind) : behind === 0 ? "" : NOTHING}</span>
      <span role="cell">{span(rank.step_seconds)}</span>
      <span role="cell">{rank.phase ?? NOTHING}</span>
      <span role="cell" title={`${rank.node}, pid ${rank.pid}`}>
        {rank.node}
      </span>
      <span role="cell" title={rank.device_uuids.join("\n")}>
        {rank.device_uuids.join(", ") || NOTHING}
      </span>
    </div>
  );
}
