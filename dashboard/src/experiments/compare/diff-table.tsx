import type { Run } from "../../api/use-experiments";
import { SeriesMark } from "../../charts/series-mark";
import { Icon } from "../../ui/icon";
import styles from "./diff-table.module.css";
import type { Line } from "./differences";

interface Props {
  label: string;
  runs: readonly Run[];
  base: number;
  lines: readonly Line[];
}

/** Names down, runs across; what is not as in the baseline stands out. */
export function DiffTable({ label, runs, base, lines }: Props) {
  return (
    /* eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex -- it is scrolled by keys */
    <div className={styles.scroll} tabIndex={0} role="group" aria-label={label}>
      <table className={styles.table}>
        <thead>
          <tr>
            <th scope="col">Name</th>
            {runs.map((run, at) => (
              <th key={run.run_id} scope="col">
                <SeriesMark line={at} /> {run.name || run.run_id}
                {at === base ? <small>baseline</small> : <code>{run.run_id}</code>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {lines.map(({ name, cells }) => (
            <tr key={name} data-testid="diff-row" data-part={label} data-name={name}>
              <th scope="row">{name}</th>
              {cells.map((cell, at) => (
                <td key={runs[at]?.run_id ?? at} data-kind={cell.kind}>
                  {cell.isBest ? <Icon name="check" size={13} /> : null} <span data-testid="diff-value">{cell.text}</span>
                  {cell.isBest ? <span className="unseen">the best</span> : null}
                  {cell.against ? <small> {cell.against}</small> : null}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
