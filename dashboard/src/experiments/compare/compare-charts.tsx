import { useMemo } from "react";

import type { Comparison, Run } from "../../api/use-experiments";
import { useLives } from "../../api/use-live";
import { MetricGrid } from "../../charts/metric-grid";
import { GridTools } from "../../charts/tools";
import { useLasting } from "../../ui/hooks";
import { Panel } from "../../ui/panel";
import { CompareCard } from "./compare-card";

const NONE: readonly never[] = [];

/** Every metric that one of the runs has, as a chart of all of them; charts of active runs grow. */
export function CompareCharts({ runs, metrics }: { runs: readonly Run[]; metrics: Comparison["metrics"] }) {
  const active = runs.filter((run) => !run.ended_at).map((run) => ({ topic: "job" as const, job: run.job_id }));
  const live = useLives(active);
  const names = useMemo(() => {
    const fresh = live.flatMap((one) => one.value?.metrics ?? []);
    return [...new Set([...metrics.map((one) => one.name), ...fresh])];
  }, [metrics, live]);
  return (
    <Panel title="Curves">
      <MetricGrid
        metrics={names}
        tools={<GridTools ranks={NONE} hasReplaced={false} />}
        row={(row) => <CompareRow runs={runs} names={row} />}
      />
    </Panel>
  );
}

const BUCKETS = 300;
const PASSING = 120; // milliseconds in view; a row that is scrolled past is not requested

/** The charts of one row: one subscription per run serves all of them. */
function CompareRow({ runs, names }: { runs: readonly Run[]; names: readonly string[] }) {
  const isHere = useLasting(PASSING);
  const request = { topic: "series" as const, names: [...names], ranks: [0], buckets: BUCKETS };
  const found = useLives(isHere ? runs.map((run) => ({ ...request, job: run.job_id })) : []);
  return (
    <>
      {names.map((name) => (
        <CompareCard key={name} name={name} runs={runs} found={found} />
      ))}
    </>
  );
}
