/** The loom: where nodes and devices, jobs and ranks stand, and the threads between them. Pure.
 *
 * A cluster that is small is shown whole. Of a large one every node and every job is a line, with
 * those of its devices and ranks that are not well below it; one opens what one wants to see.
 */

import type { ClusterJob, ClusterNode, ClusterRank, ClusterValue, Device, Health } from "../api/wire";

export const [HEAD, ROW, GAP] = [46, 30, 12]; // pixels; the style sheet has the same
const [FEW_DEVICES, FEW_RANKS] = [32, 48];

export interface NodeRow {
  kind: "node";
  key: string;
  top: number;
  node: ClusterNode;
  devices: Device[];
  isOpen: boolean;
}

export interface DeviceRow {
  kind: "device";
  key: string;
  top: number;
  device: Device;
}

export interface JobRow {
  kind: "job";
  key: string;
  top: number;
  job: ClusterJob;
  ranks: ClusterRank[];
  isOpen: boolean;
}

export interface RankRow {
  kind: "rank";
  key: string;
  top: number;
  rank: ClusterRank;
  devices: Device[];
}

export interface Thread {
  key: string;
  /** The rows at its ends. */
  ends: [left: string, right: string];
  from: number;
  to: number;
  health: Health;
  /** How many lie upon each other. */
  count: number;
}

export interface Woven {
  left: (NodeRow | DeviceRow)[];
  right: (JobRow | RankRow)[];
  threads: Thread[];
  height: number;
}

/** Return the loom; `turned` are those nodes and jobs that are not as they would be by themselves. */
export function weave(value: ClusterValue, turned: ReadonlySet<string>): Woven {
  const left = warp(value, turned);
  const right = weft(value, turned, left.at);
  const height = Math.max(left.height, right.height);
  return { left: left.rows, right: right.rows, threads: threadsOf(value.devices, left.at, right.at), height };
}

export function healthOf({ state }: Device): Health {
  return state === "failed" || state === "draining" ? state : "healthy";
}

/** Return how many of some devices are how. */
export function countsOf(devices: readonly Device[]): Record<Health, number> {
  const counts = { healthy: 0, draining: 0, failed: 0 };
  for (const device of devices) counts[healthOf(device)] += 1;
  return counts;
}

interface Place {
  key: string;
  y: number;
}

interface Side<R> {
  rows: R[];
  /** Where the thread of a device, or of a rank, is tied. */
  at: Map<string, Place>;
  height: number;
}

function warp({ nodes, devices }: ClusterValue, turned: ReadonlySet<string>): Side<NodeRow | DeviceRow> {
  const rows: (NodeRow | DeviceRow)[] = [];
  const at = new Map<string, Place>();
  const own = grouped(devices, ({ node }) => node);
  let top = 0;
  for (const node of [...nodes].sort((a, b) => inOrder(a.id, b.id))) {
    const all = (own.get(node.id) ?? []).sort(byKind);
    const key = `n:${node.id}`;
    const isOpen = devices.length <= FEW_DEVICES !== turned.has(key);
    rows.push({ kind: "node", key, top, node, devices: all, isOpen });
    for (const device of all) at.set(device.uuid, { key, y: top + HEAD / 2 });
    top += HEAD;
    for (const device of isOpen ? all : all.filter((one) => healthOf(one) !== "healthy")) {
      rows.push({ kind: "device", key: `d:${device.uuid}`, top, device });
      at.set(device.uuid, { key: `d:${device.uuid}`, y: top + ROW / 2 });
      top += ROW;
    }
    top += GAP;
  }
  return { rows, at, height: Math.max(0, top - GAP) };
}

function weft(value: ClusterValue, turned: ReadonlySet<string>, from: Map<string, Place>): Side<JobRow | RankRow> {
  const rows: (JobRow | RankRow)[] = [];
  const at = new Map<string, Place>();
  const used = usedBy(value.devices);
  const names = new Map(value.jobs.map((job) => [job.id, job]));
  const groups = [...grouped(value.ranks, ({ job }) => job)].map(([id, ranks]) => {
    const places = ranks.flatMap((rank) => (used.get(rank.id) ?? []).map(({ uuid }) => from.get(uuid)?.y ?? 0));
    const middle = places.reduce((sum, y) => sum + y, 0) / Math.max(1, places.length);
    return { job: names.get(id) ?? { id, name: "", state: "", owner: "" }, ranks: ranks.sort(byRank), middle };
  });
  groups.sort((a, b) => a.middle - b.middle || inOrder(a.job.id, b.job.id));
  let top = 0;
  for (const { job, ranks, middle } of groups) {
    const key = `j:${job.id}`;
    const isOpen = value.ranks.length <= FEW_RANKS !== turned.has(key);
    const shown = isOpen ? ranks : ranks.filter((rank) => isWorthALook(rank, used.get(rank.id) ?? []));
    const tied = isOpen ? HEAD + (shown.length * ROW) / 2 : HEAD / 2; // where most of its threads end
    top = Math.max(top, Math.round(middle - tied));
    rows.push({ kind: "job", key, top, job, ranks, isOpen });
    for (const rank of ranks) at.set(rank.id, { key, y: top + HEAD / 2 });
    top += HEAD;
    for (const rank of shown) {
      rows.push({ kind: "rank", key: `r:${rank.id}`, top, rank, devices: used.get(rank.id) ?? [] });
      at.set(rank.id, { key: `r:${rank.id}`, y: top + ROW / 2 });
      top += ROW;
    }
    top += GAP;
  }
  return { rows, at, height: Math.max(0, top - GAP) };
}

function threadsOf(devices: readonly Device[], left: Map<string, Place>, right: Map<string, Place>): Thread[] {
  const found = new Map<string, Thread>();
  for (const device of devices) {
    for (const process of device.processes) {
      const [from, to, health] = [left.get(device.uuid), right.get(process), healthOf(device)];
      if (!from || !to) continue; // a rank that has just come or gone
      const key = `${from.key} ${to.key} ${health}`;
      const known = found.get(key);
      if (known) known.count += 1;
      else found.set(key, { key, ends: [from.key, to.key], from: from.y, to: to.y, health, count: 1 });
    }
  }
  const order: Health[] = ["healthy", "draining", "failed"]; // what is not well lies above
  return [...found.values()].sort((a, b) => order.indexOf(a.health) - order.indexOf(b.health));
}

function usedBy(devices: readonly Device[]): Map<string, Device[]> {
  const found = new Map<string, Device[]>();
  for (const device of devices) {
    for (const process of device.processes) found.set(process, [...(found.get(process) ?? []), device]);
  }
  return found;
}

function isWorthALook(rank: ClusterRank, devices: readonly Device[]): boolean {
  return rank.state !== "up" || devices.some((device) => healthOf(device) !== "healthy");
}

function grouped<T>(items: readonly T[], by: (item: T) => string): Map<string, T[]> {
  const found = new Map<string, T[]>();
  for (const item of items) {
    const group = found.get(by(item));
    if (group) group.push(item);
    else found.set(by(item), [item]);
  }
  return found;
}

function byKind(a: Device, b: Device): number {
  return a.kind.localeCompare(b.kind) || a.index - b.index || inOrder(a.uuid, b.uuid);
}

function byRank(a: ClusterRank, b: ClusterRank): number {
  return a.role.localeCompare(b.role) || a.rank - b.rank;
}

/** node2 before node10. */
function inOrder(a: string, b: string): number {
  return a.localeCompare(b, "en", { numeric: true });
}
