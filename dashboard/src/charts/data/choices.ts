/** What is shown by default. Pure. */

/** Return the metric to show: the chosen one, else the loss, else the first. */
export function metricOf(metrics: readonly string[], chosen: string): string {
  if (chosen) return chosen;
  const exact = metrics.find((name) => name === "loss");
  return exact ?? metrics.find((name) => /(^|[/_.])loss$/i.test(name)) ?? metrics[0] ?? "";
}

/** Return the weight of an exponential mean, 0 to 0.999. */
export function smoothingOf(word: string): number {
  const found = Number(word);
  return Number.isFinite(found) ? Math.min(0.999, Math.max(0, found)) : 0;
}
