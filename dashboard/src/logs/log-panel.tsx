import { useLive } from "../api/use-live";
import type { JobRow } from "../api/wire";
import { Empty, Panel, Skeleton, Trouble } from "../ui/panel";
import { useWord } from "../ui/router";
import { whole } from "../ui/text/format";
import { ranksOf, requestOf } from "./filter";
import { LogFilter } from "./log-filter";
import { LogList } from "./log-list";

/** What the ranks of a job print, as they print it. */
export function LogPanel({ job }: { job: JobRow }) {
  const [chosen] = useWord("ranks");
  const [level] = useWord("level");
  const [regex] = useWord("regex");
  const request = requestOf(job.id, chosen, level, regex);
  const { value, problem } = useLive(request);
  const all = new Set([...Array.from({ length: job.world_size ?? 0 }, (_, rank) => rank), ...ranksOf(chosen)]);
  const isNarrowed = Boolean(request.ranks ?? request.level ?? request.regex);
  return (
    <Panel title="Logs" tools={value ? <span className="number">{whole(value.items.length)} lines</span> : null}>
      <LogFilter ranks={[...all].sort((a, b) => a - b)} />
      {problem ? <Trouble detail={problem.detail} remedy={problem.remedy} /> : null}
      {!problem && !value ? <Skeleton height={360} /> : null}
      {!problem && value?.items.length === 0 ? (
        <Empty title={isNarrowed ? "No line matches" : "Nothing has been printed yet"}>
          <p>{isNarrowed ? "Matching lines appear here as they are printed." : "Lines appear here as ranks print them."}</p>
        </Empty>
      ) : null}
      {!problem && value?.items.length ? <LogList key={JSON.stringify(request)} logs={value} job={job.id} /> : null}
    </Panel>
  );
}
