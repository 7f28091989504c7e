import { useLive } from "../api/use-live";
import { Panel, Skeleton, Tools, Trouble } from "../ui/panel";
import { useWord } from "../ui/router";
import { HeatBody } from "./heat-body";
import styles from "./heat-body.module.css";
import { MEASURES, spanOf, SPANS, STEP_SECONDS } from "./heat-words";

const COLUMNS = 300;

/** One number of every rank over the last while, in colours: who differs, and since when. */
export function HeatPanel({ job, metrics }: { job: string; metrics: readonly string[] }) {
  const [measure] = useWord("heat");
  const [seconds] = useWord("span");
  const [as] = useWord("as");
  const name = measure || STEP_SECONDS;
  const { value, problem } = useLive(
    metrics.includes(name) ? { topic: "heat", job, names: [name], buckets: COLUMNS, span: spanOf(seconds) } : null,
  );
  if (!metrics.includes(name)) {
    return (
      <Panel title="Ranks over time">
        <p className={styles.hint}>No rank has reported its step time. A script reports it from its first step on: loom.init().</p>
      </Panel>
    );
  }
  return (
    <Panel title="Ranks over time" tools={<HeatTools metrics={metrics} />}>
      {problem ? <Trouble detail={problem.detail} remedy={problem.remedy} /> : null}
      {!value && !problem ? <Skeleton height={120} /> : null}
      {value ? <HeatBody heat={value} isTable={as === "table"} /> : null}
    </Panel>
  );
}

/** Which number of the ranks, for how long, and whether as a table. All of it is in the address. */
function HeatTools({ metrics }: { metrics: readonly string[] }) {
  const [measure, setMeasure] = useWord("heat");
  const [span, setSpan] = useWord("span");
  const [as, setAs] = useWord("as");
  const known = MEASURES.filter(([name]) => metrics.includes(name));
  return (
    <Tools>
      <select
        aria-label="Measure"
        data-testid="heat-measure"
        value={measure || STEP_SECONDS}
        onChange={(event) => setMeasure(event.target.value === STEP_SECONDS ? "" : event.target.value)}
      >
        {known.map(([name, text]) => (
          <option key={name} value={name}>
            {text}
          </option>
        ))}
      </select>
      <select aria-label="Time range" data-testid="heat-span" value={span} onChange={(event) => setSpan(event.target.value)}>
        {SPANS.map(([seconds, text]) => (
          <option key={seconds} value={seconds}>
            {text}
          </option>
        ))}
      </select>
      <button type="button" aria-pressed={as === "table"} onClick={() => setAs(as === "table" ? "" : "table")}>
        Table
      </button>
    </Tools>
  );
}
