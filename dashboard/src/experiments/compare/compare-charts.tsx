import { useMemo } from "react";

import type { Comparison, Run } from "../../api/use-experiments";
import { useLives } from "../../api/use-live";
import { MetricGrid } from "../../charts/metric-grid";
import { GridTools } from "../../charts/tools";
import { useLasting } from "../../ui/hooks";
import { Panel } from "../../ui/panel";
import { CompareCard } from "./compare-card";

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

const BUCKETS = 300;
const PASSING = 120; // milliseconds in view; a row that is scrolled past is not asked for

/** The charts of one row: each run is asked once for all of them, and goes on telling what is new. */
function CompareRow({ runs, names }: { runs: readonly Run[]; names: readonly string[] }) {
  const isHere = useLasting(PASSING);
  const wished = { topic: "series" as const, names: [...names], ranks: [0], buckets: BUCKETS };
  const found = useLives(isHere ? runs.map((run) => ({ ...wished, job: run.job_id })) : []);
  return (
    <>
      {names.map((name) => (
        <CompareCard key={name} name={name} runs={runs} found={found} />
      ))}
    </>
  );
}
