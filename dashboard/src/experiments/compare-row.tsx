import type { Run } from "../api/use-experiments";
import { useLives } from "../api/use-live";
import { useLasting } from "../ui/use-lasting";
import { CompareCard } from "./compare-card";

const BUCKETS = 300;
const PASSING = 120; // milliseconds in view; a row that is scrolled past is not asked for

/** The charts of one row: each run is asked once for all of them, and goes on telling what is new. */
export function CompareRow({ runs, names }: { runs: readonly Run[]; names: readonly string[] }) {
  const isHere = useLasting(PASSING);
  const wished = { topic: "series" as const, names: [...names], ranks: [0], buckets: BUCKETS };
  const found = useLives(isHere ? runs.map((run) => ({ ...wished, job: run.job_id })) : []);
  return (
    <>
      {names.map((name) => (
        <CompareCard key={name} name={name} runs={runs} found={found} />
      ))}
    </>
  );
}
