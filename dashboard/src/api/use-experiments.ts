/** Runs as experiments: a list that is read on page by page, and some of them side by side. */

import {
  useInfiniteQuery,
  useQuery,
  type InfiniteData,
  type UseInfiniteQueryResult,
  type UseQueryResult,
} from "@tanstack/react-query";

import { ask, type Refused } from "./http";

const PAGE = 200; // runs that are asked for at once

/** What came of a metric; a number that JSON does not have is a word. */
export interface Metric {
  last: number | string | null;
  best: number | string | null;
  best_step: number | null;
  /** Of runs that ended long ago these are not known. */
  min?: number | string | null;
  max?: number | string | null;
}

export interface Run {
  run_id: string;
  job_id: string;
  name: string;
  owner: string;
  state: string;
  project: string;
  group: string;
  tags: string[];
  commit: string | null;
  branch: string | null;
  dirty: boolean | null;
  created_at: string | null;
  started_at: string | null;
  ended_at: string | null;
  step: number | null;
  world_size: number | null;
  attempt: number;
  metrics: Record<string, Metric>;
}

export interface ListedRun extends Run {
  config: Record<string, unknown>;
}

export interface RunPage {
  items: ListedRun[];
  next: string | null;
}

/** A name whose values differ; `missing` marks the runs that have none. */
export interface Difference {
  name: string;
  values: unknown[];
  missing: boolean[];
}

export interface Outcome {
  name: string;
  goal: "min" | "max" | null;
  last: Metric["last"][];
  best: Metric["best"][];
  best_step: (number | null)[];
  winner: number | null;
}

export interface Comparison {
  runs: Run[];
  config: Difference[];
  /** How many names of the config have one value in all runs. */
  same: number;
  metrics: Outcome[];
  summary: Difference[];
  git: Difference[];
  packages: Difference[];
  environment: Difference[];
}

/** Read the runs that a question asks for, a page at a time. */
export function useRuns(words: string): UseInfiniteQueryResult<InfiniteData<RunPage>, Refused> {
  return useInfiniteQuery<RunPage, Refused, InfiniteData<RunPage>, readonly string[], string>({
    queryKey: ["runs", words],
    queryFn: ({ pageParam, signal }) => {
      const query = new URLSearchParams(words);
      query.set("limit", String(PAGE));
      if (pageParam) query.set("cursor", pageParam);
      return ask<RunPage>(`/api/experiments?${query.toString()}`, { signal });
    },
    initialPageParam: "",
    getNextPageParam: ({ next }) => next ?? undefined,
    placeholderData: (before) => before,
    gcTime: 0,
  });
}

/** Ask how runs differ; `news` is what has become of them since. */
export function useComparison(runs: readonly string[], news: string): UseQueryResult<Comparison, Refused> {
  return useQuery<Comparison, Refused>({
    queryKey: ["comparison", runs, news],
    queryFn: ({ signal }) => ask<Comparison>("/api/experiments/compare", { method: "POST", body: { runs }, signal }),
    enabled: runs.length > 1,
    placeholderData: (before) => before,
    gcTime: 0,
  });
}
