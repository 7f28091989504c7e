import { type Fact, factsOf, variablesOf } from "../spec/facts";
import { PackageList } from "../spec/package-list";
import specStyles from "../spec/spec-panel.module.css";
import { StateBadge } from "../ui/indicators";
import { FactList, Panel } from "../ui/panel";
import { date, shown, span } from "../ui/text/format";
import { type RunData, tookOf } from "./data";
import styles from "./report-head.module.css";

/** Which run this is, how it stood and why, whose it is, and when it was. */
export function ReportHead({ run: { job, recorded }, madeAt }: { run: RunData; madeAt: string }) {
  const commit = recorded?.git?.commit;
  const facts: [string, string | number | null | undefined][] = [
    ["id", job.id],
    ["owner", job.owner],
    ["project", job.project],
    ["tags", job.tags.join(", ")],
    ["workers", job.world_size],
    ["submitted", job.created_at && date(job.created_at)],
    ["started", job.started_at && date(job.started_at)],
    [job.ended_at ? "ended" : "as of", date(job.ended_at ?? madeAt)],
    ["took", span(tookOf(job, madeAt))],
    ["commit", commit && commit.slice(0, 12) + (recorded.git?.dirty ? ", changed" : "")],
  ];
  return (
    <header className={styles.head}>
      <div className={styles.top}>
        <h1>{job.name || job.id}</h1>
        <StateBadge state={job.state} />
        {job.reason ? <span data-testid="job-reason">{job.reason}</span> : null}
      </div>
      <dl className={styles.facts} data-testid="facts">
        {facts.map(([name, value]) =>
          value ? (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ) : null,
        )}
      </dl>
    </header>
  );
}

/** What a run was given and what it ran with: config, spec, source, packages, variables. */
export function RunSettings({ run: { config, spec, recorded } }: { run: RunData }) {
  const given = Object.entries(config).map(([name, value]): Fact => [name, shown(value)]);
  const facts = recorded ? factsOf(recorded) : [];
  const variables = recorded ? variablesOf(recorded) : [];
  const packages = recorded?.packages ?? {};
  const lists: [string, readonly Fact[]][] = [
    ["Config", given],
    ["Source and machine", facts],
    ["Variables", variables],
  ];
  return (
    <div className={specStyles.columns}>
      {lists.map(([title, list]) =>
        list.length ? (
          <Panel key={title} title={title}>
            <FactList facts={list} />
          </Panel>
        ) : null,
      )}
      {spec ? (
        <Panel title="Spec">
          <pre className={specStyles.spec} data-testid="spec">
            {JSON.stringify(spec, null, 2)}
          </pre>
        </Panel>
      ) : null}
      {Object.keys(packages).length ? <PackageList packages={packages} /> : null}
    </div>
  );
}
