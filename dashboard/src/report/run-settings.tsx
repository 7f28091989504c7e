import { FactList } from "../ui/fact-list";
import { factsOf, variablesOf, type Fact } from "../spec/facts";
import { PackageList } from "../spec/package-list";
import styles from "../spec/spec-panel.module.css";
import { shown } from "../ui/format";
import { Panel } from "../ui/panel";
import type { RunData } from "./data";

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
    <div className={styles.columns}>
      {lists.map(([title, list]) =>
        list.length ? (
          <Panel key={title} title={title}>
            <FactList facts={list} />
          </Panel>
        ) : null,
      )}
      {spec ? (
        <Panel title="Spec">
          <pre className={styles.spec} data-testid="spec">
            {JSON.stringify(spec, null, 2)}
          </pre>
        </Panel>
      ) : null}
      {Object.keys(packages).length ? <PackageList packages={packages} /> : null}
    </div>
  );
}
