import { useMemo } from "react";

import type { Comparison, Run } from "../api/use-experiments";
import { useLives } from "../api/use-live";
import { GridTools } from "../charts/grid-tools";
import { MetricGrid } from "../charts/metric-grid";
import { Panel } from "../ui/panel";
import { CompareRow } from "./compare-row";

const NONE: readonly never[] = [];

/** Every metric that one of the runs has, as a chart of all of them; those that go on grow as they do. */
export function CompareCharts({ runs, metrics }: { runs: readonly Run[]; metrics: Comparison["metrics"] }) {
  const going = runs.filter((run) => !run.ended_at).map((run) => ({ topic: "job" as const, job: run.job_id }));
  const told = useLives(going);
  const names = useMemo(() => {
    const fresh = told.flatMap((one) => one.value?.metrics ?? []);
    return [...new Set([...metrics.map((one) => one.name), ...fresh])];
  }, [metrics, told]);
  return (
    <Panel title="Curves">
      <MetricGrid
        metrics={names}
        tools={<GridTools ranks={NONE} />}
        row={(row) => <CompareRow runs={runs} names={row} />}
      />
    </Panel>
  );
}
