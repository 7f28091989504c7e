import type { Buckets, Curve } from "../api/wire";
import { TableHead } from "../ui/table";
import { date, number, span, whole } from "../ui/text/format";
import styles from "./labelled-table.module.css";

const HEADS = ["Step", "Time", "Last", "Min", "Max", "Points"];

interface Labelled {
  label: string;
  curve: Buckets & Pick<Curve, "role">;
}

interface Props {
  found: readonly { label: string; curve: Curve }[];
  /** Times are seconds since the beginning. */
  isRelative: boolean;
}

/** Curves of several runs as numbers: a table a curve, a row a bucket. */
export function LabelledTable({ found, isRelative }: Props) {
  const when = (seconds = 0) => (isRelative ? span(seconds) : date(seconds * 1000));
  return (
    // eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex -- it is scrolled by keys
    <div className={styles.scroll} role="group" aria-label="Numbers" tabIndex={0}>
      {found.flatMap(withReplaced).map(({ label, curve }) => (
        <table key={`${label} ${curve.role}`} className={styles.table} data-testid="curve-table">
          <caption>{label}</caption>
          <TableHead heads={HEADS} />
          <tbody>
            {curve.steps.map((step, at) => (
              <tr key={step}>
                <th scope="row">{curve.first_steps[at] === step ? whole(step) : `${whole(curve.first_steps[at])} to ${whole(step)}`}</th>
                <td>{when(curve.times[at])}</td>
                <td>{number(curve.last[at])}</td>
                <td>{number(curve.min[at])}</td>
                <td>{number(curve.max[at])}</td>
                <td>{whole(curve.counts[at])}</td>
              </tr>
            ))}
          </tbody>
        </table>
      ))}
    </div>
  );
}

function withReplaced({ label, curve }: { label: string; curve: Curve }): Labelled[] {
  const older = curve.replaced.map((one) => ({
    label: `${label}, replaced (generation ${one.generation})`,
    curve: { ...one, role: curve.role },
  }));
  return [{ label, curve }, ...older];
}
