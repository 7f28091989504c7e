/** Ask something of a job, and what would become of it. */

import { useMutation, useQuery, type UseMutationResult, type UseQueryResult } from "@tanstack/react-query";

import { ask, type Refused } from "./http";
import type { Command, CommandRequest, Preview } from "./wire";

export interface Ordered {
  request: CommandRequest;
  key: string;
}

/** What a command would do now. It is asked for again whenever the request is another one. */
export function usePreview(job: string, request: CommandRequest | null): UseQueryResult<Preview, Refused> {
  return useQuery<Preview, Refused>({
    queryKey: ["preview", job, request],
    queryFn: ({ signal }) =>
      ask<Preview>(`${pathOf(job)}/commands/preview`, { method: "POST", body: request, signal }),
    enabled: request !== null,
    placeholderData: (before) => before,
    gcTime: 0,
  });
}

/** What was asked; a job that is cancelled has no ranks to ask, so there is no command. */
export interface Sent {
  command: Command | null;
}

/** Send a command. With one key it is done once, however often it is sent. */
export function useOrder(job: string): UseMutationResult<Sent, Refused, Ordered> {
  return useMutation<Sent, Refused, Ordered>({ mutationFn: (ordered) => send(job, ordered) });
}

async function send(job: string, { request, key }: Ordered): Promise<Sent> {
  if (request.verb === "cancel") {
    const reason = encodeURIComponent(request.reason ?? "");
    await ask(`${pathOf(job)}?reason=${reason}`, { method: "DELETE" });
    return { command: null };
  }
  const body = { ...request, wait: 0 };
  return { command: await ask<Command>(`${pathOf(job)}/commands`, { method: "POST", body, key }) };
}

function pathOf(job: string): string {
  return `/api/jobs/${encodeURIComponent(job)}`;
}
