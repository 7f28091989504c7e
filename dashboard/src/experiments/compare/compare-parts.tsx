import type { Comparison, Run } from "../../api/use-experiments";
import { Panel } from "../../ui/panel";
import styles from "./compare-page.module.css";
import { DiffTable } from "./diff-table";
import { linesOf, outcomesOf } from "./differences";

interface Props {
  comparison: Comparison;
  runs: readonly Run[];
  base: number;
}

/** What the runs were given and what came out, as far as it differs; then what surrounded them. */
export function CompareParts({ comparison, runs, base }: Props) {
  const { config, same, metrics, git, packages, environment } = comparison;
  const given = linesOf(config, base);
  const outcomes = outcomesOf(metrics, base);
  const around = [
    ["Source", linesOf(git, base)],
    ["Machine", linesOf(environment, base)],
    ["Packages", linesOf(packages, base)],
  ] as const;
  return (
    <div className={styles.parts}>
      <Panel title="Config" tools={<span className={styles.same}>{same} the same</span>}>
        {given.length ? (
          <DiffTable label="Config" runs={runs} base={base} lines={given} />
        ) : (
          <p>All runs have the same config.</p>
        )}
      </Panel>
      {outcomes.length ? (
        <Panel title="Results">
          <DiffTable label="Results" runs={runs} base={base} lines={outcomes} />
        </Panel>
      ) : null}
      {around.map(([title, lines]) =>
        lines.length ? (
          <Panel key={title} title={title}>
            <DiffTable label={title} runs={runs} base={base} lines={lines} />
          </Panel>
        ) : null,
      )}
    </div>
  );
}
