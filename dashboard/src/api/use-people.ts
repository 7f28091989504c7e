/** Who may come in, by which tokens, and links that are good once. */

import { useMutation, type UseMutationResult, useQuery, useQueryClient, type UseQueryResult } from "@tanstack/react-query";

import type { components } from "../../types/schema";
import { ask, type Refused } from "./http";
import type { Me } from "./wire";

type Schemas = components["schemas"];
export type User = Schemas["User"];
export type Token = Schemas["Token"];
export type NewToken = Schemas["NewToken"];
export type NewLink = Schemas["NewLink"];
export type Retention = Schemas["Retention"];

const [USERS, TOKENS] = [["users"], ["tokens"]];

export function useUsers(): UseQueryResult<User[], Refused> {
  return useQuery<User[], Refused>({
    queryKey: USERS,
    queryFn: async ({ signal }) => (await ask<{ items: User[] }>("/api/users", { signal })).items,
  });
}

/** The tokens of all users, or one's own. */
export function useTokens(all: boolean): UseQueryResult<Token[], Refused> {
  return useQuery<Token[], Refused>({
    queryKey: [...TOKENS, all],
    queryFn: async ({ signal }) => (await ask<{ items: Token[] }>(all ? "/api/tokens" : "/api/me/tokens", { signal })).items,
  });
}

export function useRetention(): UseQueryResult<Retention, Refused> {
  return useQuery<Retention, Refused>({
    queryKey: ["retention"],
    queryFn: ({ signal }) => ask<Retention>("/api/retention", { signal }),
  });
}

export interface UserChange {
  name: string;
  role: User["role"];
  disabled: boolean;
}

/** Make a user, or change one. */
export function usePutUser(): UseMutationResult<User, Refused, UserChange> {
  return useChange(USERS, ({ name, ...body }: UserChange) =>
    ask<User>(`/api/users/${encodeURIComponent(name)}`, { method: "PUT", body }),
  );
}

export interface TokenWish {
  user: string;
  label: string;
  /** How long it counts; null is for good. */
  seconds: number | null;
  key: string;
}

/** Make a token; its secret is in the answer and nowhere else. */
export function useAddToken(): UseMutationResult<NewToken, Refused, TokenWish> {
  return useChange(TOKENS, ({ key, ...body }: TokenWish) => ask<NewToken>("/api/tokens", { method: "POST", body, key }));
}

/** Revoke a token of any user, or one's own. */
export function useRevoke(all: boolean): UseMutationResult<Token, Refused, string> {
  const path = all ? "/api/tokens" : "/api/me/tokens";
  return useChange(TOKENS, (id: string) => ask<Token>(`${path}/${encodeURIComponent(id)}`, { method: "DELETE" }));
}

/** Make a link that lets a user in once. */
export function useAddLink(): UseMutationResult<NewLink, Refused, { user: string; key: string }> {
  return useMutation<NewLink, Refused, { user: string; key: string }>({
    mutationFn: ({ user, key }) => ask<NewLink>("/api/links", { method: "POST", body: { user }, key }),
    gcTime: 0, // nothing remembers a secret
  });
}

function useChange<A, W>(stale: readonly string[], change: (request: W) => Promise<A>): UseMutationResult<A, Refused, W> {
  const queries = useQueryClient();
  return useMutation<A, Refused, W>({
    mutationFn: change,
    onSuccess: () => queries.invalidateQueries({ queryKey: stale }),
    gcTime: 0,
  });
}

export const ME = ["me"] as const;

/** Ask once who is signed in; what the server refuses is not asked for again. */
export function useMe(): UseQueryResult<Me, Refused> {
  return useQuery<Me, Refused>({ queryKey: ME, queryFn: ({ signal }) => ask<Me>("/api/me", { signal }) });
}
