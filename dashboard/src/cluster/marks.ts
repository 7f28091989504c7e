/** What can be said of devices, in words. Pure. */

import type { ClusterJob, Device, Health } from "../api/wire";
import type { IconName } from "../ui/icon";
import { healthOf } from "./weave";

export const LOOKS: Record<Health, { icon: IconName; word: string }> = {
  healthy: { icon: "check", word: "healthy" },
  draining: { icon: "half", word: "draining" },
  failed: { icon: "close", word: "failed" },
};

export interface Say {
  option: string;
  about: string;
  done: string;
  isGrave?: boolean;
}

export const SAYS: Record<Health, Say> = {
  draining: {
    option: "Drain: it is to be left",
    about: "It is to be left: ranks that are there go on, until somebody says that it is well or has failed.",
    done: "Drain",
  },
  failed: {
    option: "Fail: it is broken",
    about: "The ranks that use it are ended at once, and their jobs are recovered as each of them wants.",
    done: "Say that it failed",
    isGrave: true,
  },
  healthy: {
    option: "Recover: it is well again",
    about: "It may be used as before.",
    done: "Say that it is well",
  },
};

const ORDER: readonly Health[] = ["draining", "failed", "healthy"];

/** Return what would change something, the mildest first; of what is not well, that it is well. */
export function saysFor(devices: readonly Device[]): Health[] {
  const found = ORDER.filter((state) => devices.some((device) => healthOf(device) !== state));
  const isWell = devices.every((device) => healthOf(device) === "healthy");
  return isWell ? found : ["healthy", ...found.filter((state) => state !== "healthy")];
}

/** Return what a device is called beside its node: `gpu 3`, or its name where it has no number. */
export function labelOf({ uuid, node, kind, index }: Device): string {
  if (kind) return `${kind} ${index}`;
  return node && uuid.startsWith(`${node}/`) ? uuid.slice(node.length + 1) : uuid;
}

/** Return a process as people say it: `rank 1 of gpt`. */
export function processOf(id: string, names: ReadonlyMap<string, string>): string {
  const [job = "", , rank = ""] = id.split("/");
  return `rank ${rank} of ${names.get(job) ?? job}`;
}

/** Return what jobs are called, by their ids. */
export function namesOf(jobs: readonly ClusterJob[]): Map<string, string> {
  return new Map(jobs.map(({ id, name }) => [id, name || id]));
}
