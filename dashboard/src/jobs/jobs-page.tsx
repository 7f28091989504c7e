import { useMemo } from "react";

import { useLive } from "../api/use-live";
import { Button } from "../ui/button";
import { Empty, Skeleton, Trouble } from "../ui/panel";
import { go, useWord } from "../ui/router";
import { CopyLine } from "../ui/text/copy";
import { filtered } from "./filter";
import { JobFilter } from "./job-filter";
import { JobTable } from "./job-table";
import styles from "./jobs-page.module.css";

/** All jobs of the plane, live. */
export function JobsPage() {
  const { value, problem } = useLive({ topic: "jobs" });
  const [state] = useWord("state");
  const [words] = useWord("q");
  const all = value?.items;
  const shown = useMemo(() => filtered(all ?? [], state, words), [all, state, words]);
  return (
    <div className={styles.page}>
      <title>Jobs · torchLoom</title>
      <h1>Jobs</h1>
      <JobFilter jobs={all ?? []} />
      {problem ? (
        <Trouble detail={problem.detail} remedy={problem.remedy} />
      ) : !all ? (
        <JobTableSkeleton />
      ) : all.length === 0 ? (
        <FirstJob />
      ) : shown.length === 0 ? (
        <Empty title="No job matches this filter">
          <p>There are {all.length} in all.</p>
          <Button onClick={() => go(location.pathname)}>Show all</Button>
        </Empty>
      ) : (
        <JobTable jobs={shown} />
      )}
    </div>
  );
}

/** Shown while there is no job: the commands that start one. */
function FirstJob() {
  return (
    <Empty title="Nothing has run here yet">
      <p>Start any training script with loom run instead of python. The job appears here as it starts.</p>
      <CopyLine text="loom run -n 2 train.py" label="Copy the command" />
      <p>No script at hand? This trains a small model on every rank.</p>
      <CopyLine text="loom test -n 2" label="Copy the command" />
    </Empty>
  );
}

/** The table before anything of it is known. */
function JobTableSkeleton() {
  return (
    <div className={styles.table} aria-busy="true" aria-label="Loading jobs">
      {[0.7, 0.5, 0.6, 0.4].map((width) => (
        <div key={width} className={styles.row}>
          <Skeleton width={90} height={20} />
          <Skeleton width={`${width * 100}%`} height={16} />
        </div>
      ))}
    </div>
  );
}
