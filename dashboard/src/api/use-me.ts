/** Who looks at this page. */

import { useQuery, type UseQueryResult } from "@tanstack/react-query";

import { ask, type Refused } from "./http";
import type { Me } from "./wire";

export const ME = ["me"] as const;

/** Ask once who is signed in; what the server refuses is not asked for again. */
export function useMe(): UseQueryResult<Me, Refused> {
  return useQuery<Me, Refused>({ queryKey: ME, queryFn: ({ signal }) => ask<Me>("/api/me", { signal }) });
}
