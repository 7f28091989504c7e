import { useMe } from "../api/use-people";
import { useRecord } from "../api/use-record";
import type { JobRow } from "../api/wire";
import { Empty, FactList, Panel, Skeleton, Trouble } from "../ui/panel";
import { Link } from "../ui/router";
import { factsOf, variablesOf } from "./facts";
import { PackageList } from "./package-list";
import styles from "./spec-panel.module.css";

/** What the job was asked to be, and what it ran with: source, interpreter, packages, variables. */
export function SpecPanel({ job }: { job: JobRow }) {
  const { data, error } = useRecord(job.id);
  const role = useMe().data?.role;
  if (error) return <Trouble detail={error.problem.detail} remedy={error.problem.remedy} />;
  if (!data) return <Skeleton height={320} />;
  const { spec, recorded } = data;
  if (!spec && !recorded) {
    return (
      <Empty title="Nothing was recorded about this job">
        <p>The plane did not launch this job: it shows what the ranks report and has no spec.</p>
      </Empty>
    );
  }
  const variables = recorded ? variablesOf(recorded) : [];
  const facts = recorded ? factsOf(recorded) : [];
  const packages = Object.keys(recorded?.packages ?? {}).length ? recorded?.packages : null;
  return (
    <div className={styles.columns}>
      {spec ? (
        <Panel
          title="Spec"
          tools={
            role && role !== "viewer" ? (
              <Link href={`/submit?from=${encodeURIComponent(job.id)}`} data-testid="submit-again">
                Submit again
              </Link>
            ) : null
          }
        >
          <pre className={styles.spec} data-testid="spec">
            {JSON.stringify(spec, null, 2)}
          </pre>
        </Panel>
      ) : null}
      <div className={styles.column}>
        {facts.length ? (
          <Panel title="Source and machine">
            <FactList facts={facts} />
          </Panel>
        ) : null}
        {packages ? <PackageList packages={packages} /> : null}
        {variables.length ? (
          <Panel title="Variables">
            <FactList facts={variables} />
          </Panel>
        ) : null}
      </div>
    </div>
  );
}
