/** The health reports on devices and their texts. Pure. */

import type { ClusterJob, Device, Health } from "../api/wire";
import type { IconName } from "../ui/icon";
import { healthOf } from "./weave";

export const LOOKS: Record<Health, { icon: IconName; word: string }> = {
  healthy: { icon: "check", word: "healthy" },
  draining: { icon: "half", word: "draining" },
  failed: { icon: "close", word: "failed" },
};

export interface HealthReport {
  option: string;
  about: string;
  done: string;
  isGrave?: boolean;
}

export const REPORTS: Record<Health, HealthReport> = {
  draining: {
    option: "Drain: place no new ranks on it",
    about: "No new ranks are placed on it. Ranks that use it keep running until it is reported healthy or failed.",
    done: "Drain",
  },
  failed: {
    option: "Fail: it is broken",
    about: "The ranks that use it are ended at once, and each job recovers by its own policy.",
    done: "Report as failed",
    isGrave: true,
  },
  healthy: {
    option: "Recover: it is healthy again",
    about: "It can be used again.",
    done: "Report as healthy",
  },
};

const ORDER: readonly Health[] = ["draining", "failed", "healthy"];

/** Return the reports that would change something, the mildest first; healthy first where a device is not. */
export function reportsFor(devices: readonly Device[]): Health[] {
  const found = ORDER.filter((state) => devices.some((device) => healthOf(device) !== state));
  const isWell = devices.every((device) => healthOf(device) === "healthy");
  return isWell ? found : ["healthy", ...found.filter((state) => state !== "healthy")];
}

/** Return what a device is called beside its node: `gpu 3`, or its name where it has no number. */
export function labelOf({ uuid, node, kind, index }: Device): string {
  if (kind) return `${kind} ${index}`;
  return node && uuid.startsWith(`${node}/`) ? uuid.slice(node.length + 1) : uuid;
}

/** Return a process for people: `rank 1 of gpt`. */
export function processOf(id: string, names: ReadonlyMap<string, string>): string {
  const [job = "", , rank = ""] = id.split("/");
  return `rank ${rank} of ${names.get(job) ?? job}`;
}

/** Return what jobs are called, by their ids. */
export function namesOf(jobs: readonly ClusterJob[]): Map<string, string> {
  return new Map(jobs.map(({ id, name }) => [id, name || id]));
}
