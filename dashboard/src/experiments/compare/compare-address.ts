export const MOST_RUNS = 12; // as many as have a colour, or a colour and dashes, of their own

/** Return the address of runs side by side. */
export function compareAddress(runs: readonly string[]): string {
  return `/experiments/compare?${new URLSearchParams(runs.map((run) => ["run", run])).toString()}`;
}
