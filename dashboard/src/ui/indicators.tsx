import { Icon, type IconName } from "./icon";
import styles from "./indicators.module.css";

interface Props {
  part: number | null;
  label: string;
  tone?: "busy" | "good" | "wait" | "bad" | "warn" | "odd";
}

/** How much of something is done. */
export function ProgressBar({ part, label, tone = "busy" }: Props) {
  const width = `${Math.min(1, Math.max(0, part ?? 0)) * 100}%`;
  return (
    <span
      className={styles.bar}
      data-tone={tone}
      role="progressbar"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={100}
      {...(part === null ? {} : { "aria-valuenow": Math.round(part * 100) })}
    >
      <span style={{ width }} />
    </span>
  );
}

type Look = [tone: string, icon: IconName];

const LOOKS: Record<string, Look> = {
  QUEUED: ["wait", "clock"],
  RUNNING: ["busy", "play"],
  RECOVERING: ["odd", "recovery"],
  PAUSED: ["warn", "pause"],
  COMPLETED: ["good", "check"],
  FAILED: ["bad", "alert"],
  CANCELLED: ["wait", "stop"],
};

/** The state of a job: a word, a shape and a colour. */
export function StateBadge({ state }: { state: string }) {
  const [tone, icon] = LOOKS[state] ?? ["wait", "circle"];
  return (
    <span className={styles.badge} data-tone={tone} data-testid="job-state" data-state={state}>
      <Icon name={icon} size={12} />
      {state.charAt(0) + state.slice(1).toLowerCase()}
    </span>
  );
}

const [WIDTH, HEIGHT] = [120, 28];

/** A curve without axes: which way it goes. */
export function Sparkline({ values, label }: { values: readonly (number | null)[]; label: string }) {
  const path = sparkPath(values, WIDTH, HEIGHT);
  return (
    <svg
      className={styles.spark}
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      preserveAspectRatio="none"
      role="img"
      aria-label={label}
    >
      <path d={path} vectorEffect="non-scaling-stroke" />
    </svg>
  );
}

const MARGIN = 2; // so that a stroke at the edge is not cut

/** Return the path of a curve in a box; a value that is no number is a gap. */
export function sparkPath(values: readonly (number | null)[], width: number, height: number): string {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return "";
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const across = width / (values.length - 1);
  const up = high > low ? (height - 2 * MARGIN) / (high - low) : 0;
  const floor = high > low ? height - MARGIN : height / 2;
  let pen = "M";
  const parts = values.map((value, at) => {
    if (value === null) {
      pen = "M";
      return "";
    }
    const part = `${pen}${short(at * across)} ${short(floor - (value - low) * up)}`;
    pen = "L";
    return part;
  });
  return parts.join("");
}

function short(value: number): string {
  return String(Math.round(value * 10) / 10);
}
