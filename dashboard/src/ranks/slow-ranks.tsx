import { ranks } from "../ui/format";
import type { Shown } from "./heat-look";
import styles from "./slow-ranks.module.css";
import { slowOf } from "./slow";

const NAMED = 3;

interface Props {
  shown: Shown;
  timeOf: (column: number) => string;
}

/** Who is slow now, in a sentence each. */
export function SlowRanks({ shown, timeOf }: Props) {
  const found = slowOf(shown);
  if (!found.length) {
    return (
      <p className={styles.calm}>
        No rank takes longer than the others. Ranks that wait for each other at every step take equally long, whoever
        holds them up.
      </p>
    );
  }
  return (
    <ul className={styles.list} data-testid="slow-ranks">
      {found.slice(0, NAMED).map(({ rank, role, since, times }) => (
        <li key={`${rank} ${role}`} data-rank={rank}>
          <b>Rank {rank}</b> takes {times.toFixed(1)} times as long as the others since {timeOf(since)}.
        </li>
      ))}
      {found.length > NAMED ? <li>So do ranks {ranks(found.slice(NAMED).map(({ rank }) => rank))}.</li> : null}
    </ul>
  );
}
