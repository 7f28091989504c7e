import { xsOf, type Across } from "../charts/columns";
import styles from "../curves/curve-values.module.css";
import { nearest } from "../charts/nearest";
import { number } from "../ui/format";
import type { Named } from "./data";

const LINES = 6; // colours of lines; further ones begin anew

interface Props {
  found: readonly Named[];
  axis: Across;
  x: number | null;
}

/** The numbers of several curves under the pointer, or the newest. */
export function RunValues({ found, axis, x }: Props) {
  return (
    <p className={styles.values} data-testid="curve-values">
      {found.map(({ label, curve }, line) => (
        <span key={`${label} ${curve.role}`} className={styles.one} data-series={(line % LINES) + 1}>
          {label} <b>{number(curve.last[nearest(x ?? Infinity, xsOf(curve, axis))])}</b>
        </span>
      ))}
    </p>
  );
}
