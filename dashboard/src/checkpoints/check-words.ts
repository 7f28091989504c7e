/** The text for a checkpoint that is, or was, read and hashed. Pure. */

import type { Check } from "../api/wire";
import { bytes, percent, span } from "../ui/text/format";

/** Return whether it has not ended yet. */
export function isUnderWay(check: Check | undefined): boolean {
  return check?.state === "waiting" || check?.state === "running";
}

/** Return how much of it was read, from 0 to 1. */
export function partOf({ read, bytes: all }: Check): number {
  return all > 0 ? Math.min(1, read / all) : 0;
}

export function wordsOf(check: Check): string {
  switch (check.state) {
    case "waiting":
      return "waiting to be read";
    case "running":
      return `${percent(partOf(check))} of ${bytes(check.bytes)} read`;
    case "whole":
      return `verified: ${bytes(check.read)} hashed in ${span(check.seconds)}`;
    case "damaged":
      return `damaged: ${check.shard ?? "a file"}: ${check.reason}`;
    case "failed":
      return `could not be verified: ${check.reason}`;
  }
}
