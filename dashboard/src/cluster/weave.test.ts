import { expect, test } from "vitest";

import type { ClusterValue } from "../api/wire";
import { bigCluster } from "./big";
import { countsOf, GAP, HEAD, ROW, weave } from "./weave";

const NONE: ReadonlySet<string> = new Set();
const keys = (rows: readonly { key: string }[]) => rows.map(({ key }) => key);

function marked(value: ClusterValue, uuid: string, state: string): ClusterValue {
  return { ...value, devices: value.devices.map((one) => (one.uuid === uuid ? { ...one, state } : one)) };
}

test("a small cluster is shown whole: a thread from each device to each rank on it", () => {
  const woven = weave(bigCluster(1, 4, 2), NONE);

  expect(keys(woven.left)).toEqual(["n:node1", "d:GPU-0000", "d:GPU-0001", "d:GPU-0002", "d:GPU-0003"]);
  expect(keys(woven.right)).toEqual(["j:job-0", "r:job-0/trainer/0", "r:job-0/trainer/1", "j:job-1", "r:job-1/trainer/0", "r:job-1/trainer/1"]);
  expect(woven.threads.map(({ ends, count }) => [...ends, count])).toEqual([
    ["d:GPU-0000", "r:job-0/trainer/0", 1],
    ["d:GPU-0001", "r:job-0/trainer/1", 1],
    ["d:GPU-0002", "r:job-1/trainer/0", 1],
    ["d:GPU-0003", "r:job-1/trainer/1", 1],
  ]);
  expect(woven.threads[0]?.from).toBe(HEAD + ROW / 2);
  expect(woven.height).toBe(2 * HEAD + 4 * ROW + GAP);
});

test("of a large one each node and each job is a line, and their threads lie upon each other", () => {
  const woven = weave(bigCluster(32, 8, 256), NONE);

  expect(woven.left.length).toBe(32);
  expect(woven.right.length).toBe(1);
  expect(woven.threads.length).toBe(32);
  expect(new Set(woven.threads.map(({ count }) => count))).toEqual(new Set([8]));
  expect(woven.height).toBe(32 * HEAD + 31 * GAP);
});

test("what is not well is shown however large the cluster is, with its own thread on top", () => {
  const woven = weave(marked(bigCluster(32, 8, 256), "GPU-0009", "failed"), NONE);

  expect(keys(woven.left).slice(0, 4)).toEqual(["n:node1", "n:node2", "d:GPU-0009", "n:node3"]);
  expect(keys(woven.right)).toEqual(["j:job-0", "r:job-0/trainer/9"]);
  expect(woven.threads.at(-1)).toMatchObject({ ends: ["d:GPU-0009", "r:job-0/trainer/9"], health: "failed", count: 1 });
  expect(woven.threads.reduce((sum, { count }) => sum + count, 0)).toBe(256);
});

test("one opens a node of a large cluster, and folds one of a small cluster", () => {
  const open = weave(bigCluster(32, 8, 256), new Set(["n:node2"]));
  const folded = weave(bigCluster(1, 4, 4), new Set(["n:node1", "j:job-0"]));

  expect(keys(open.left).length).toBe(32 + 8);
  expect(keys(folded.left)).toEqual(["n:node1"]);
  expect(folded.threads).toMatchObject([{ ends: ["n:node1", "j:job-0"], count: 4 }]);
});

test("jobs stand where their devices are, and never upon each other", () => {
  const { right } = weave(bigCluster(32, 8, 64), NONE);
  const tops = right.map(({ top }) => top);

  expect(keys(right)).toEqual(["j:job-0", "j:job-1", "j:job-2", "j:job-3"]);
  expect(tops.every((top, at) => at === 0 || top >= (tops[at - 1] ?? 0) + HEAD)).toBe(true);
  expect(tops[3]).toBeGreaterThan(tops[0] ?? 0);
});

test("a rank that is not known yet has no thread, and nothing breaks", () => {
  const value = bigCluster(1, 2, 2);

  expect(weave({ ...value, ranks: [] }, NONE).threads).toEqual([]);
  expect(weave({ nodes: [], devices: [], ranks: [], jobs: [], queue: [] }, NONE)).toEqual({ left: [], right: [], threads: [], height: 0 });
});

test("devices are counted by how they are", () => {
  expect(countsOf(marked(bigCluster(1, 4, 4), "GPU-0001", "draining").devices)).toEqual({ healthy: 3, draining: 1, failed: 0 });
});
