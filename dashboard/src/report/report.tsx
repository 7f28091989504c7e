import { useMemo } from "react";

import mark from "../app/mark.svg";
import { ThemeToggle } from "../app/theme-toggle";
import { Chips } from "../ui/field";
import { useWord } from "../ui/router";
import { date } from "../ui/text/format";
import { Compared } from "./compared";
import { curvesOf, type ReportData } from "./data";
import { ReportCharts } from "./report-charts";
import styles from "./report.module.css";
import { RunReport } from "./run-report";

/** A run, or several, as they were when the file was made. */
export function Report({ data }: { data: ReportData }) {
  const { runs, made_at: madeAt } = data;
  const [chosen, setChosen] = useWord("run");
  const curves = useMemo(() => runs.map(curvesOf), [runs]);
  const at = Math.max(0, runs.findIndex(({ job }) => job.id === chosen));
  const [run, own] = [runs[at], curves[at]];
  if (!run || !own) return null;
  const several = runs.length > 1;
  const title = runs.map(({ job }) => (several ? job.id : job.name || job.id)).join(", ");
  return (
    <>
      <title>{`${title} · torchLoom`}</title>
      <header className={styles.bar}>
        <img src={mark} width="22" height="22" alt="" />
        <b>torchLoom report</b>
        <time dateTime={madeAt}>made {date(madeAt)}</time>
        <ThemeToggle />
      </header>
      <main className={styles.main}>
        {several ? (
          <>
            <h1>{title}</h1>
            <Compared lines={data.compared} />
            <ReportCharts runs={runs} curves={curves} />
            <nav aria-label="Runs">
              <Chips label="Details of">
                {runs.map(({ job }) => (
                  <button key={job.id} type="button" aria-pressed={job.id === run.job.id} onClick={() => setChosen(job.id)}>
                    {job.id}
                  </button>
                ))}
              </Chips>
            </nav>
          </>
        ) : null}
        <RunReport key={run.job.id} run={run} curves={own} madeAt={madeAt} hasCharts={!several} />
        <footer className={styles.foot}>
          Made by torchLoom {data.made_by}. This file is self-contained; it loads nothing from the network.
        </footer>
      </main>
    </>
  );
}
