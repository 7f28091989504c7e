import { useMemo } from "react";

import { useLive } from "../api/use-live";
import { Button } from "../ui/button";
import { Empty } from "../ui/empty";
import { go, useWord } from "../ui/router";
import { Trouble } from "../ui/trouble";
import { filtered } from "./filter";
import { FirstJob } from "./first-job";
import { JobFilter } from "./job-filter";
import { JobTable } from "./job-table";
import { JobTableSkeleton } from "./job-table-skeleton";
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
        <Empty title="No job fits this filter">
          <p>There are {all.length} in all.</p>
          <Button onClick={() => go(location.pathname)}>Show all</Button>
        </Empty>
      ) : (
        <JobTable jobs={shown} />
      )}
    </div>
  );
}
