import { useMemo, useState } from "react";

import type { Heat } from "../api/wire";
import { clock, ranks } from "../ui/text/format";
import styles from "./heat-body.module.css";
import { type Place, scaleOf, type Shown, shownOf } from "./heat-look";
import { HeatStrip } from "./heat-strip";
import { HeatTable } from "./heat-table";
import { STEP_SECONDS, written } from "./heat-words";
import { slowOf } from "./slow";

/** The values of all ranks, in colours or as numbers, and the value under the pointer. */
export function HeatBody({ heat, isTable }: { heat: Heat; isTable: boolean }) {
  const [chosen, setChosen] = useState<Place | null>(null);
  const shown = useMemo(() => shownOf(heat), [heat]);
  const scale = useMemo(() => scaleOf(shown), [shown]);
  const columns = shown.lines[0]?.values.length ?? 0;
  const timeOf = (column: number) => clock((shown.start + column) * heat.width * 1000);
  const at = chosen && shown.lines[chosen.line] ? chosen : null;
  const line = at && shown.lines[at.line];
  const words = at && line ? `rank ${line.rank}, ${timeOf(at.column)}: ${written(heat.name, line.values[at.column])}` : "";
  return (
    <>
      {heat.name === STEP_SECONDS ? <SlowRanks shown={shown} timeOf={timeOf} /> : null}
      {isTable ? null : (
        <div className={styles.head}>
          <p className={styles.value} data-testid="heat-value">
            {words || " "}
          </p>
          <p className={styles.legend}>
            {written(heat.name, scale.low)} <i aria-hidden="true" /> {written(heat.name, scale.high)} and more
          </p>
        </div>
      )}
      {isTable ? (
        <HeatTable name={heat.name} shown={shown} timeOf={timeOf} />
      ) : (
        <div className={styles.area}>
          <HeatStrip shown={shown} scale={scale} chosen={at} onChoose={setChosen} />
          <HeatSliders shown={shown} chosen={at} words={words} onChoose={setChosen} />
          <p className={styles.axis}>
            <span>{timeOf(0)}</span>
            <span>{timeOf(columns)}</span>
          </p>
        </div>
      )}
      {heat.left_out ? <p className={styles.hint}>The first ranks; {heat.left_out} more are not drawn.</p> : null}
    </>
  );
}

interface Props {
  shown: Shown;
  chosen: Place | null;
  words: string;
  onChoose: (place: Place) => void;
}

/** The cells for a keyboard: one slider goes through the ranks, one through the time. */
function HeatSliders({ shown: { lines }, chosen, words, onChoose }: Props) {
  const last = { line: lines.length - 1, column: (lines[0]?.values.length ?? 1) - 1 };
  const at = chosen ?? { line: 0, column: last.column };
  const common = { "aria-valuetext": words, onFocus: () => onChoose(at) };
  if (last.line < 0) return null;
  return (
    <>
      <input
        {...common}
        className="unseen"
        type="range"
        aria-label="Rank"
        data-testid="heat-rank"
        min={0}
        max={last.line}
        value={at.line}
        onChange={(event) => onChoose({ ...at, line: event.target.valueAsNumber })}
      />
      <input
        {...common}
        className="unseen"
        type="range"
        aria-label="Time"
        data-testid="heat-time"
        min={0}
        max={last.column}
        value={at.column}
        onChange={(event) => onChoose({ ...at, column: event.target.valueAsNumber })}
      />
    </>
  );
}

const NAMED = 3;

interface SlowRanksProps {
  shown: Shown;
  timeOf: (column: number) => string;
}

/** Who is slow now, in a sentence each. */
function SlowRanks({ shown, timeOf }: SlowRanksProps) {
  const found = slowOf(shown);
  if (!found.length) {
    return (
      <p className={styles.calm}>
        No rank takes longer than the others. Ranks that wait for each other at every step take equally long; the
        one that delays the others cannot be seen here.
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
      {found.length > NAMED ? <li>The same applies to ranks {ranks(found.slice(NAMED).map(({ rank }) => rank))}.</li> : null}
    </ul>
  );
}
