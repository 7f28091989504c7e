import type { JobRow, Rank } from "../api/wire";
import { GridTools } from "../charts/grid-tools";
import { MetricGrid } from "../charts/metric-grid";
import { ChartCard } from "./chart-card";

interface Props {
  job: JobRow;
  metrics: readonly string[];
  ranks: readonly Rank[];
}

/** Every metric of a job; only charts in view are in the page, and only these are asked for. */
export function ChartGrid({ job, metrics, ranks }: Props) {
  const start = Date.parse(job.started_at ?? job.created_at ?? "") / 1000 || 0;
  return (
    <MetricGrid
      metrics={metrics}
      tools={<GridTools ranks={ranks} />}
      row={(names) => names.map((name) => <ChartCard key={name} job={job.id} name={name} start={start} />)}
    />
  );
}
