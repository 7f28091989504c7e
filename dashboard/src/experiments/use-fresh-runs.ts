/** The runs that are asked for, asked for again when the socket tells of another state. */

import type { InfiniteData, UseInfiniteQueryResult } from "@tanstack/react-query";
import { useEffect, useRef } from "react";

import type { Refused } from "../api/http";
import { useRuns, type RunPage } from "../api/use-experiments";

const FEW = 3; // pages that are read again by themselves

export function useFreshRuns(
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
