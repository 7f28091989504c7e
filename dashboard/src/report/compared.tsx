import { Panel } from "../ui/panel";
import styles from "./report-table.module.css";

const MISSING = "-"; // a run has no such value

/** How runs differ, as `loom compare` prints it. */
export function Compared({ lines }: { lines: readonly (readonly string[])[] }) {
  const [heads, ...rows] = lines;
  if (!heads) return null;
  return (
    <Panel title="How they differ">
      <div className={styles.scroll}>
        <table className={styles.table} data-testid="compared">
          <thead>
            <tr>
              {heads.map((head, at) => (
                <th key={at} scope="col">
                  {head}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows
              .filter(([name, ...cells]) => name && !cells.every((cell) => cell === MISSING))
              .map(([name, ...cells], at) => (
                <tr key={at} data-part={cells.some(Boolean) ? undefined : name}>
                  <th scope="row">{name}</th>
                  {cells.map((cell, column) => (
                    <td key={column}>{cell}</td>
                  ))}
                </tr>
              ))}
          </tbody>
        </table>
      </div>
    </Panel>
  );
}
