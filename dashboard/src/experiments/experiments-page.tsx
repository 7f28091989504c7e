import { useDeferredValue, useMemo, useState } from "react";

import { useLive } from "../api/use-live";
import { Button } from "../ui/button";
import { CopyLine } from "../ui/copy-line";
import { Empty } from "../ui/empty";
import { useWord } from "../ui/router";
import { Skeleton } from "../ui/skeleton";
import { Trouble } from "../ui/trouble";
import { useSettled } from "../ui/use-settled";
import { ColumnPicker } from "./column-picker";
import { columnsOf } from "./columns";
import { CompareBar } from "./compare-bar";
import styles from "./experiments-page.module.css";
import { askedOf } from "./filter";
import { livened, newsOf } from "./live-runs";
import { RunFilter } from "./run-filter";
import { RunTable } from "./run-table";
import { useFreshRuns } from "./use-fresh-runs";

const PAUSE = 250; // milliseconds without a key until the server is asked

/** Every run with what it was given and what came of it: found, sorted, and chosen to be compared. */
export function ExperimentsPage() {
  const [line] = useWord("q");
  const [sort] = useWord("sort");
  const [word] = useWord("cols");
  const [picks, setPicks] = useState(false);
  const { value } = useLive({ topic: "jobs" });
  const asked = useSettled(askedOf(line, sort), PAUSE);
  const { data, error, isLong, refetch, ...more } = useFreshRuns(asked, newsOf(value?.items));
  const told = useMemo(() => data?.pages.flatMap((page) => page.items), [data]);
  const runs = useDeferredValue(useMemo(() => told && livened(told, value?.items ?? []), [told, value]));
  const columns = useMemo(() => columnsOf(word, told ?? []), [word, told]);
  return (
    <div className={styles.page}>
      <title>Experiments · torchLoom</title>
      <div className={styles.head}>
        <h1>Experiments</h1>
        <div>
          {isLong ? <Button onClick={() => void refetch()}>Load again</Button> : null}{" "}
          <Button data-testid="choose-columns" onClick={() => setPicks(true)}>
            Columns
          </Button>
        </div>
      </div>
      <RunFilter />
      {error ? (
        <Trouble detail={error.problem.detail} remedy={error.problem.remedy} />
      ) : !runs ? (
        <Skeleton height={320} />
      ) : runs.length === 0 && !line ? (
        <Empty title="No run yet">
          <p>Every job is a run here: what it was given, and what came of it.</p>
          <CopyLine text="loom run -n 2 train.py" label="Copy the command" />
        </Empty>
      ) : runs.length === 0 ? (
        <Empty title="No run fits this filter">
          <p>Try fewer words, or a condition that is not so strict.</p>
        </Empty>
      ) : (
        <RunTable
          runs={runs}
          columns={columns}
          hasMore={more.hasNextPage}
          onMore={() => {
            if (!more.isFetchingNextPage) void more.fetchNextPage();
          }}
        />
      )}
      <CompareBar />
      {picks ? <ColumnPicker runs={told ?? []} columns={columns} onClose={() => setPicks(false)} /> : null}
    </div>
  );
}
