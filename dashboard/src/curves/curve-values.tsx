import type { Curve, Problem } from "../api/wire";
import { type Across, replacedAt, xsOf } from "../charts/data/columns";
import { nearest } from "../charts/data/words";
import { Skeleton, Trouble } from "../ui/panel";
import { number, ranks, whole } from "../ui/text/format";
import curveStyles from "./curve-panel.module.css";
import styles from "./curve-values.module.css";

const SHOWN = 6; // curves in words; further ones are on the chart

interface Props {
  curves: readonly Curve[];
  axis: Across;
  start?: number;
  x: number | null;
  unit?: string;
}

/** The numbers at a place, or the newest. */
export function CurveValues({ curves, axis, start = 0, x, unit = "" }: Props) {
  const [first] = curves;
  const at = first ? nearest(x ?? Infinity, xsOf(first, axis, start)) : -1;
  if (!first || at < 0) return <p className={styles.values}>&nbsp;</p>;
  const isOne = curves.length === 1;
  const before = replacedAt(first.replaced, first.steps[at] ?? 0);
  const [from, to] = [first.first_steps[at] ?? 0, first.steps[at] ?? 0];
  return (
    <p className={styles.values} data-testid="curve-values">
      <span>step {from === to ? whole(to) : `${whole(from)} to ${whole(to)}`}</span>
      {isOne ? (
        <>
          <b>{first.nans[at] && first.last[at] === null ? "NaN" : `${number(first.last[at])} ${unit}`.trim()}</b>
          {from === to ? null : (
            <span>
              least {number(first.min[at])}, greatest {number(first.max[at])}
            </span>
          )}
          {before ? (
            <span data-testid="replaced-value">
              before {number(before.last)} (generation {before.generation})
            </span>
          ) : null}
        </>
      ) : (
        curves.slice(0, SHOWN).map((curve, line) => (
          <span key={`${curve.role} ${curve.rank}`} className={styles.one} data-series={(line % 6) + 1}>
            rank {ranks([curve.rank])} <b>{number(curve.last[nearest(x ?? Infinity, xsOf(curve, axis, start))])}</b>
          </span>
        ))
      )}
    </p>
  );
}

interface CurveStateProps {
  name: string;
  curves: readonly Curve[] | undefined;
  problem: Problem | undefined;
  rank: string;
}

/** Why there is no curve, over the place where it will be. */
export function CurveState({ name, curves, problem, rank }: CurveStateProps) {
  if (problem) return <div className={curveStyles.state}><Trouble detail={problem.detail} remedy={problem.remedy} /></div>;
  if (!name) {
    return (
      <div className={curveStyles.state}>
        <p>No metrics yet. The loss appears here once the script logs it: loom.init().log(loss=loss).</p>
      </div>
    );
  }
  if (!curves) return <div className={curveStyles.state}><Skeleton height="100%" /></div>;
  if (curves.length === 0) {
    return (
      <div className={curveStyles.state}>
        <p>
          {rank === "all" ? "No rank has" : `Rank ${rank || "0"} has not`} logged {name} yet.
        </p>
      </div>
    );
  }
  return null;
}
