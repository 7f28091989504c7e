import { useState } from "react";

import { useLive } from "../api/use-live";
import { useMe } from "../api/use-people";
import type { JobRow, Verb } from "../api/wire";
import { CheckpointPanel } from "../checkpoints/checkpoint-panel";
import { CommandDialog } from "../control/command-dialog";
import { Commands } from "../control/commands";
import { Controls } from "../control/controls";
import { KnobPanel } from "../control/knob-panel";
import { ChartGrid } from "../curves/chart-grid";
import { CurvePanel } from "../curves/curve-panel";
import { History } from "../curves/entry-list";
import { EventPanel } from "../events/event-panel";
import { FirstError } from "../job/first-error";
import { JobClocks } from "../job/job-clocks";
import { JobHeader } from "../job/job-header";
import { JobSkeleton } from "../job/job-skeleton";
import { LogPanel } from "../logs/log-panel";
import { HeatPanel } from "../ranks/heat-panel";
import { RankGrid } from "../ranks/rank-grid";
import { SpecPanel } from "../spec/spec-panel";
import { Empty, Trouble } from "../ui/panel";
import { Link } from "../ui/router";
import styles from "./job-page.module.css";
import type { Tab } from "./routes";

/** One job: how it is, its curves with what happened along them, and what may be done. */
export function JobPage({ job: name, tab }: { job: string; tab: Tab }) {
  const { value, problem } = useLive({ topic: "job", job: name });
  if (problem?.status === 404 || value?.job === null) {
    return (
      <Empty title={`There is no job ${name}`}>
        <p>
          <Link href="/jobs">All jobs</Link>
        </p>
      </Empty>
    );
  }
  if (problem) return <Trouble detail={problem.detail} remedy={problem.remedy} />;
  if (!value?.job) return <JobSkeleton />;
  const { job, clocks, knobs, metrics, ranks, verbs } = value;
  return (
    <div className={styles.page}>
      <title>{`${job.name || job.id} · torchLoom`}</title>
      <JobHeader job={job} controls={<Controls job={job} verbs={verbs} knobs={knobs} />} />
      <JobClocks job={job} clocks={clocks} />
      {job.first_error ? <FirstError error={job.first_error} /> : null}
      <JobTabs job={name} tab={tab} />
      {tab === "charts" ? <ChartGrid job={job} metrics={metrics} ranks={ranks} /> : null}
      {tab === "knobs" ? <KnobPanel job={job} verbs={verbs} knobs={knobs} /> : null}
      {tab === "ranks" ? (
        <>
          <HeatPanel job={job.id} metrics={metrics} />
          <RankGrid ranks={ranks} />
        </>
      ) : null}
      {tab === "logs" ? <LogPanel job={job} /> : null}
      {tab === "checkpoints" ? <CheckpointView job={job} verbs={verbs} /> : null}
      {tab === "events" ? <EventPanel job={job.id} /> : null}
      {tab === "spec" ? <SpecPanel job={job} /> : null}
      {tab === "overview" ? (
        <>
          <CurvePanel job={job.id} metrics={metrics} ranks={ranks} />
          <div className={styles.pair}>
            <History job={job.id} />
            <Commands job={job} verbs={verbs} knobs={knobs} />
          </div>
        </>
      ) : null}
    </div>
  );
}

/** The checkpoints of a job, and the dialog to resume from one. */
function CheckpointView({ job, verbs }: { job: JobRow; verbs: readonly Verb[] }) {
  const [from, setFrom] = useState<number | null>(null);
  const me = useMe();
  const mayVerify = me.data !== undefined && me.data.role !== "viewer";
  const mayResume = verbs.includes("resume") && job.ended_at !== null; // a paused job resumes where it is
  return (
    <>
      <CheckpointPanel job={job.id} mayVerify={mayVerify} mayResume={mayResume} onResume={setFrom} />
      {from === null ? null : (
        <CommandDialog job={job} verb="resume" knobs={[]} from={String(from)} onClose={() => setFrom(null)} />
      )}
    </>
  );
}

const TABS: readonly [Tab, string][] = [
  ["overview", "Overview"],
  ["charts", "Charts"],
  ["knobs", "Knobs"],
  ["ranks", "Ranks"],
  ["logs", "Logs"],
  ["checkpoints", "Checkpoints"],
  ["events", "Events"],
  ["spec", "Spec"],
];

/** The views of one job. */
function JobTabs({ job, tab }: { job: string; tab: Tab }) {
  const path = `/jobs/${encodeURIComponent(job)}`;
  return (
    <nav className={styles.tabs} aria-label="Views of the job">
      {TABS.map(([name, text]) => (
        <Link
          key={name}
          data-view={name}
          href={name === "overview" ? path : `${path}/${name}`}
          aria-current={name === tab ? "page" : undefined}
        >
          {text}
        </Link>
      ))}
    </nav>
  );
}
