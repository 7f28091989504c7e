import type { InfiniteData, UseInfiniteQueryResult } from "@tanstack/react-query";
import { useDeferredValue, useEffect, useMemo, useRef, useState } from "react";

import type { Refused } from "../api/http";
import { type RunPage, useRuns } from "../api/use-experiments";
import { useLive } from "../api/use-live";
import { listed } from "../charts/data/words";
import { Button } from "../ui/button";
import { FilterBar, SearchLine } from "../ui/field";
import { useSettled } from "../ui/hooks";
import { Empty, Skeleton, Trouble } from "../ui/panel";
import { go, useWord } from "../ui/router";
import { CopyLine } from "../ui/text/copy";
import { ColumnPicker } from "./column-picker";
import { columnsOf } from "./columns";
import { compareAddress, MOST_RUNS } from "./compare/compare-address";
import styles from "./experiments-page.module.css";
import { askedOf } from "./filter";
import { livened, newsOf } from "./live-runs";
import { RunTable } from "./run-table";

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
  const stored = useMemo(() => data?.pages.flatMap((page) => page.items), [data]);
  const runs = useDeferredValue(useMemo(() => stored && livened(stored, value?.items ?? []), [stored, value]));
  const columns = useMemo(() => columnsOf(word, stored ?? []), [word, stored]);
  return (
    <div className={styles.page}>
      <title>Experiments · torchLoom</title>
      <div className={styles.head}>
        <h1>Experiments</h1>
        <div>
          {isLong ? <Button onClick={() => void refetch()}>Reload</Button> : null}{" "}
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
          <p>Every job is a run here: its settings and its results.</p>
          <CopyLine text="loom run -n 2 train.py" label="Copy the command" />
        </Empty>
      ) : runs.length === 0 ? (
        <Empty title="No run matches this filter">
          <p>Use fewer words or a weaker condition.</p>
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
      {picks ? <ColumnPicker runs={stored ?? []} columns={columns} onClose={() => setPicks(false)} /> : null}
    </div>
  );
}

/** The line by which runs are found; it is in the address. */
function RunFilter() {
  const [line, setLine] = useWord("q");
  return (
    <FilterBar>
      <div className={styles.line}>
        <SearchLine
          label="Filter runs"
          data-testid="run-filter"
          placeholder="Words, owner:ada, tag:night, loss<0.3, max:acc>=0.9"
          value={line}
          onChange={(event) => setLine(event.target.value)}
        />
        <p>
          Words, <code>state:failed</code>, <code>owner:</code>, <code>project:</code>, <code>tag:</code>,{" "}
          <code>commit:</code>, <code>since:2026-01-31</code>, and conditions on metrics: <code>loss&lt;0.3</code>,{" "}
          <code>best:acc&gt;=0.9</code>
        </p>
      </div>
    </FilterBar>
  );
}

/** What is chosen, and the way to see it side by side. */
function CompareBar() {
  const [picked, setPicked] = useWord("pick");
  const runs = listed(picked);
  if (!runs.length) return null;
  const isMany = runs.length > MOST_RUNS;
  return (
    <div className={styles.bar} role="region" aria-label="Chosen runs">
      <span role="status">
        {runs.length} {runs.length === 1 ? "run" : "runs"} chosen
        {runs.length === 1 ? ", choose another to compare" : isMany ? `; ${MOST_RUNS} at most are compared` : ""}
      </span>
      {runs.length > 1 && !isMany ? (
        <div className={styles.compareBarLine}>
          <CopyLine text={`loom compare ${runs.join(" ")}`} label="Copy the command" />
        </div>
      ) : null}
      <Button tone="quiet" onClick={() => setPicked("")}>
        Clear
      </Button>
      <Button
        tone="main"
        data-testid="compare"
        disabled={runs.length < 2 || isMany}
        onClick={() => go(compareAddress(runs))}
      >
        Compare
      </Button>
    </div>
  );
}

const FEW = 3; // pages that are read again by themselves

/** The requested runs, requested again when the stream reports a new one. */
function useFreshRuns(
  words: string,
  news: string,
): UseInfiniteQueryResult<InfiniteData<RunPage>, Refused> & { isLong: boolean } {
  const runs = useRuns(words);
  const { data, refetch } = runs;
  const isLong = (data?.pages.length ?? 0) > FEW;
  const seen = useRef("");
  useEffect(() => {
    const before = seen.current;
    if (!news || news === before || isLong) return;
    seen.current = news;
    if (before) void refetch({ cancelRefetch: false });
  }, [news, isLong, refetch]);
  return { ...runs, isLong };
}
