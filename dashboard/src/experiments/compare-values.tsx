import type { Run } from "../api/use-experiments";
import type { Curve } from "../api/wire";
import { xsOf, type Across } from "../charts/columns";
import { nearest } from "../charts/nearest";
import { SeriesMark } from "../charts/series-mark";
import { number } from "../ui/format";
import styles from "./compare-values.module.css";

interface Props {
  runs: readonly Run[];
  curves: readonly (Curve | undefined)[];
  axis: Across;
  starts: readonly number[];
  x: number | null;
}

/** The number of each run under the pointer, or its newest. */
export function CompareValues({ runs, curves, axis, starts, x }: Props) {
  return (
    <p className={styles.values}>
      {curves.map((curve, at) => {
        const run = runs[at];
        if (!run || !curve) return null;
        const bucket = nearest(x ?? Infinity, xsOf(curve, axis, starts[at]));
        return (
          <span key={run.run_id} data-testid="compared-value" data-run={run.run_id} title={run.name || run.run_id}>
            <SeriesMark line={at} /> <span className="unseen">{run.run_id}</span>
            <b>{number(curve.last[bucket])}</b>
          </span>
        );
      })}
    </p>
  );
}
