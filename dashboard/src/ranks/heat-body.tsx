import { useMemo, useState } from "react";

import type { Heat } from "../api/heat";
import { clock } from "../ui/format";
import styles from "./heat-body.module.css";
import { scaleOf, shownOf, type Place } from "./heat-look";
import { HeatSliders } from "./heat-sliders";
import { HeatStrip } from "./heat-strip";
import { HeatTable } from "./heat-table";
import { STEP_SECONDS, written } from "./heat-words";
import { SlowRanks } from "./slow-ranks";

/** What the lines say: in colours or as numbers, and what is under the pointer. */
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
      {heat.left_out ? <p className={styles.hint}>The first ranks; {heat.left_out} more have no line here.</p> : null}
    </>
  );
}
