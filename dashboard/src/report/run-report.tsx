import { useMemo } from "react";

import { LiveContext } from "../api/use-live";
import type { Curve } from "../api/wire";
import { CheckpointStrip } from "../checkpoints/checkpoint-strip";
import { CurvePanel } from "../curves/curve-panel";
import { FirstError } from "../job/first-error";
import { JobClocks } from "../job/job-clocks";
import { Empty } from "../ui/empty";
import { Panel } from "../ui/panel";
import { CheckpointList } from "./checkpoint-list";
import { metricsOf, type RunData } from "./data";
import { LogTails } from "./log-tails";
import { RankTable } from "./rank-table";
import { ReportCharts } from "./report-charts";
import { ReportHead } from "./report-head";
import styles from "./run-report.module.css";
import { RunHistory } from "./run-history";
import { RunSettings } from "./run-settings";
import { Stored } from "./stored";

interface Props {
  run: RunData;
  curves: readonly Curve[];
  madeAt: string;
  /** Not where the charts are those of several runs. */
  hasCharts: boolean;
}

/** Everything that the file holds of one run. */
export function RunReport({ run, curves, madeAt, hasCharts }: Props) {
  const { job, clocks, ranks, timeline, checkpoints, notes } = run;
  const stored = useMemo(() => new Stored(curves, timeline), [curves, timeline]);
  const metrics = useMemo(() => metricsOf([curves]), [curves]);
  return (
    <LiveContext value={stored}>
      <ReportHead run={run} madeAt={madeAt} />
      <JobClocks job={job} clocks={clocks} />
      {job.first_error ? <FirstError error={job.first_error} /> : null}
      {notes.map((note) => (
        <p key={note} className={styles.note}>
          {note}
        </p>
      ))}
      {metrics.length ? (
        <>
          <CurvePanel job={job.id} metrics={metrics} ranks={ranks} />
          {hasCharts ? <ReportCharts runs={[run]} curves={[curves]} /> : null}
        </>
      ) : (
        <Empty title="No numbers">
          <p>This run has logged none, or no plane was there to keep them.</p>
        </Empty>
      )}
      <RunHistory entries={timeline} />
      {ranks.length ? <RankTable ranks={ranks} /> : null}
      {checkpoints.length ? (
        <Panel title={`${checkpoints.length} checkpoints`}>
          <CheckpointStrip items={checkpoints} />
          <CheckpointList items={checkpoints} />
        </Panel>
      ) : null}
      <RunSettings run={run} />
      {run.logs.length ? <LogTails tails={run.logs} job={job.id} /> : null}
    </LiveContext>
  );
}
