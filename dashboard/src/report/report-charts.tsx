import { useMemo } from "react";

import type { Curve } from "../api/wire";
import { hasReplaced } from "../charts/data/columns";
import { groupsOf } from "../charts/data/groups";
import { GridTools } from "../charts/tools";
import { Empty } from "../ui/panel";
import { useWord } from "../ui/router";
import { metricsOf, ofRank, ofRuns, type RunData, since, startOf } from "./data";
import { ReportCard } from "./report-card";
import styles from "./report-charts.module.css";

interface Props {
  runs: readonly RunData[];
  /** Those of each run. */
  curves: readonly (readonly Curve[])[];
}

/** Every metric; those of several runs lie over each other. */
export function ReportCharts({ runs, curves }: Props) {
  const [words] = useWord("q");
  const [rank] = useWord("rank");
  const [axis] = useWord("x");
  const metrics = useMemo(() => metricsOf(curves), [curves]);
  const placed = useMemo(() => {
    if (axis !== "relative") return curves;
    return curves.map((own, at) => own.map((curve) => since(curve, runs[at] ? startOf(runs[at].job) : 0)));
  }, [curves, axis, runs]);
  const groups = groupsOf(metrics, { words, pins: [], folds: [] });
  const labels = runs.map(({ job }) => job.id);
  const [only] = placed;
  return (
    <section className={styles.charts} aria-label="Charts">
      <div data-screen>
        <GridTools
          ranks={runs.length === 1 ? (runs[0]?.ranks ?? []) : []}
          hasReplaced={runs.length === 1 && hasReplaced(only)}
        />
      </div>
      {groups.length === 0 ? <Empty title={`No metric has “${words}” in its name`} /> : null}
      {groups.map((group) => (
        <div key={group.name} className={styles.group}>
          <h2 data-testid="chart-group" data-name={group.name}>
            {group.name} <span className="number">{group.metrics.length}</span>
          </h2>
          <div className={styles.grid}>
            {group.metrics.map((name) => (
              <ReportCard
                key={name}
                name={name}
                found={runs.length === 1 && only ? ofRank(only, name, rank) : ofRuns(placed, labels, name)}
              />
            ))}
          </div>
        </div>
      ))}
    </section>
  );
}
