import { useMemo, useState } from "react";

import { LiveContext } from "../api/use-live";
import type { Checkpoint, Curve, Entry } from "../api/wire";
import { CheckpointState } from "../checkpoints/checkpoint-state";
import { CheckpointStrip } from "../checkpoints/checkpoint-strip";
import { keyOf } from "../checkpoints/standing";
import { CurvePanel } from "../curves/curve-panel";
import { EntryList } from "../curves/entry-list";
import { shownOf, withSaves } from "../curves/happened";
import { FirstError } from "../job/first-error";
import { JobClocks } from "../job/job-clocks";
import { Button } from "../ui/button";
import { Empty, Panel } from "../ui/panel";
import { TableHead } from "../ui/table";
import { bytes, date, NOTHING, span, whole } from "../ui/text/format";
import { type EndedRank, metricsOf, type RunData } from "./data";
import { LogTails } from "./log-tails";
import { ReportCharts } from "./report-charts";
import { ReportHead, RunSettings } from "./report-head";
import reportStyles from "./report-table.module.css";
import styles from "./run-report.module.css";
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
        <Empty title="No metrics">
          <p>This run has logged none, or ran without a plane.</p>
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

const FIRST = 40;

/** Everything that happened to a run, the newest first. */
function RunHistory({ entries }: { entries: readonly Entry[] }) {
  const [isWhole, setIsWhole] = useState(false);
  const lines = useMemo(() => withSaves(entries), [entries]);
  const shown = shownOf(lines, isWhole ? Infinity : FIRST);
  return (
    <Panel title="What happened">
      {entries.length === 0 ? <p>No event was recorded.</p> : null}
      <EntryList entries={shown} />
      {shown.length < lines.length ? (
        <Button tone="quiet" onClick={() => setIsWhole(true)}>
          Show all {lines.length}
        </Button>
      ) : null}
    </Panel>
  );
}

const HEADS = ["Step", "State", "Size", "Duration", "When", "Reason"];

/** What was saved, the newest first. */
function CheckpointList({ items }: { items: readonly Checkpoint[] }) {
  return (
    <div className={reportStyles.scroll}>
      <table className={reportStyles.table} aria-label="Checkpoints">
        <TableHead heads={HEADS} />
        <tbody>
          {items.map((saved) => (
            <tr key={keyOf(saved)} data-testid="checkpoint" data-step={saved.step}>
              <th scope="row">{whole(saved.step)}</th>
              <td>
                <CheckpointState state={saved.state} />
              </td>
              <td>{saved.bytes ? bytes(saved.bytes) : NOTHING}</td>
              <td>{span(saved.seconds)}</td>
              <td>{date(saved.committed_at ?? saved.created_at ?? "")}</td>
              <td>{[saved.trigger, saved.reason].filter(Boolean).join(": ") || NOTHING}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const RANK_TABLE_HEADS = ["Rank", "Role", "State", "Step", "Exit", "Node", "Devices"];

/** Every rank: where it was, how far it came, how it ended. */
function RankTable({ ranks }: { ranks: readonly EndedRank[] }) {
  return (
    <Panel title={ranks.length === 1 ? "1 rank" : `${ranks.length} ranks`}>
      <div className={reportStyles.scroll}>
        <table className={reportStyles.table} aria-label="Ranks">
          <TableHead heads={RANK_TABLE_HEADS} />
          <tbody>
            {ranks.map((rank) => (
              <tr key={`${rank.role} ${rank.rank}`} data-testid="rank">
                <th scope="row">{rank.rank}</th>
                <td>{rank.role}</td>
                <td>{[rank.state, rank.reason].filter(Boolean).join(", ")}</td>
                <td>{whole(rank.step)}</td>
                <td>{rank.exit_code ?? NOTHING}</td>
                <td>{rank.node || NOTHING}</td>
                <td>{rank.device_uuids.join(", ") || NOTHING}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Panel>
  );
}
