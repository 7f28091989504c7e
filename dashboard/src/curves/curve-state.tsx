import type { Curve, Problem } from "../api/wire";
import { Skeleton } from "../ui/skeleton";
import { Trouble } from "../ui/trouble";
import styles from "./curve-panel.module.css";

interface Props {
  name: string;
  curves: readonly Curve[] | undefined;
  problem: Problem | undefined;
  rank: string;
}

/** Why there is no curve, over the place where it will be. */
export function CurveState({ name, curves, problem, rank }: Props) {
  if (problem) return <div className={styles.state}><Trouble detail={problem.detail} remedy={problem.remedy} /></div>;
  if (!name) {
    return (
      <div className={styles.state}>
        <p>No numbers yet. A script shows its loss here once it logs: loom.init().log(loss=loss).</p>
      </div>
    );
  }
  if (!curves) return <div className={styles.state}><Skeleton height="100%" /></div>;
  if (curves.length === 0) {
    return (
      <div className={styles.state}>
        <p>
          {rank === "all" ? "No rank" : `Rank ${rank || "0"}`} has logged {name} so far.
        </p>
      </div>
    );
  }
  return null;
}
