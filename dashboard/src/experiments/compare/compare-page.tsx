import { useMemo } from "react";

import { useComparison } from "../../api/use-experiments";
import { useLive } from "../../api/use-live";
import { Empty, Skeleton, Trouble } from "../../ui/panel";
import { Link, useWord, useWords } from "../../ui/router";
import { CopyLine } from "../../ui/text/copy";
import { standing } from "../live-runs";
import { MOST_RUNS } from "./compare-address";
import { CompareCharts } from "./compare-charts";
import styles from "./compare-page.module.css";
import { CompareParts } from "./compare-parts";
import { CompareRuns } from "./compare-runs";

/** Runs side by side: their curves over each other, and only what differs of all else. */
export function ComparePage() {
  const [words, setWords] = useWords("run");
  const [baseWord, setBase] = useWord("base");
  const asked = useMemo(() => [...new Set(words)].slice(0, MOST_RUNS), [words]);
  const jobs = useLive({ topic: "jobs" }).value?.items;
  const { data, error } = useComparison(asked, standing(jobs ?? [], asked));
  const runs = useMemo(() => {
    const known = new Map(jobs?.map((job) => [job.id, job]));
    return data?.runs.map((run) => {
      const job = known.get(run.job_id);
      return job && job.state !== run.state ? { ...run, state: job.state, ended_at: job.ended_at } : run;
    });
  }, [data, jobs]);
  if (asked.length < 2) {
    return (
      <Empty title="Choose two runs or more">
        <p>
          Mark them in the <Link href="/experiments">table of experiments</Link>, then press Compare.
        </p>
      </Empty>
    );
  }
  const base = Math.max(0, runs?.findIndex((run) => run.run_id === baseWord) ?? 0);
  return (
    <div className={styles.page}>
      <title>Compare · torchLoom</title>
      <p className={styles.back}>
        <Link href={`/experiments?pick=${encodeURIComponent(asked.join(","))}`}>All experiments</Link>
      </p>
      <h1>Compare {asked.length} runs</h1>
      {error ? (
        <Trouble detail={error.problem.detail} remedy={error.problem.remedy} />
      ) : !data || !runs ? (
        <Skeleton height={320} />
      ) : (
        <>
          <CompareRuns
            runs={runs}
            base={base}
            onBase={setBase}
            onRemove={(gone) => setWords(asked.filter((run) => run !== gone))}
          />
          <CompareParts comparison={data} runs={runs} base={base} />
          <CompareCharts runs={runs} metrics={data.metrics} />
          <CopyLine text={`loom compare ${asked.join(" ")}`} label="Copy the command" />
        </>
      )}
    </div>
  );
}
