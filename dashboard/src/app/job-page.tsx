import { useLive } from "../api/use-live";
import { Commands } from "../control/commands";
import { Controls } from "../control/controls";
import { KnobPanel } from "../control/knob-panel";
import { ChartGrid } from "../curves/chart-grid";
import { CurvePanel } from "../curves/curve-panel";
import { History } from "../curves/history";
import { EventPanel } from "../events/event-panel";
import { FirstError } from "../job/first-error";
import { JobClocks } from "../job/job-clocks";
import { JobHeader } from "../job/job-header";
import { JobSkeleton } from "../job/job-skeleton";
import { LogPanel } from "../logs/log-panel";
import { HeatPanel } from "../ranks/heat-panel";
import { RankGrid } from "../ranks/rank-grid";
import { SpecPanel } from "../spec/spec-panel";
import { Empty } from "../ui/empty";
import { Link } from "../ui/link";
import { Trouble } from "../ui/trouble";
import styles from "./job-page.module.css";
import { CheckpointView } from "./checkpoint-view";
import { JobTabs } from "./job-tabs";
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
