import { useLive } from "../api/use-live";
import { Panel } from "../ui/panel";
import { useWord } from "../ui/router";
import { Skeleton } from "../ui/skeleton";
import { Trouble } from "../ui/trouble";
import { HeatBody } from "./heat-body";
import styles from "./heat-body.module.css";
import { HeatTools } from "./heat-tools";
import { spanOf, STEP_SECONDS } from "./heat-words";

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
        <p className={styles.hint}>No rank has told how long its steps take. A script tells it with its first step: loom.init().</p>
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
