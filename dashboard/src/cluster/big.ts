/** A cluster that is large, made up: to see that the loom stays readable. */

import type { ClusterValue, Device } from "../api/wire";

/** Return nodes with devices each, all of them used by jobs of so many ranks. */
export function bigCluster(nodes: number, devices: number, ranksPerJob: number): ClusterValue {
  const hosts = Array.from({ length: nodes }, (_, at) => `node${at + 1}`);
  const all = hosts.flatMap((host, at) => Array.from({ length: devices }, (_, index) => deviceOf(host, index, at * devices + index, ranksPerJob)));
  const ranks = all.map((_, number) => {
    const [job, rank] = [`job-${Math.floor(number / ranksPerJob)}`, number % ranksPerJob];
    return { id: `${job}/trainer/${rank}`, job, role: "trainer", rank, node: hosts[Math.floor(number / devices)] ?? "", state: "up", replica: "", reason: "" };
  });
  const jobs = [...new Set(ranks.map(({ job }) => job))].map((id) => ({ id, name: `gpt ${id}`, state: "RUNNING", owner: "ada" }));
  return {
    nodes: hosts.map((id) => ({
      ...{ id, state: "up", reason: "", cpus: 128, memory_mb: 1_000_000, workers: devices, heard_at: null },
      gpus: all.filter(({ node }) => node === id).map(({ uuid }) => uuid),
      free: { cpus: 64, memory_mb: 500_000, gpus: [] },
      jobs: jobs.map(({ id: job }) => job),
    })),
    ...{ devices: all, ranks, jobs, queue: [] },
  };
}

function deviceOf(node: string, index: number, number: number, ranksPerJob: number): Device {
  const uuid = `GPU-${String(number).padStart(4, "0")}`;
  return {
    ...{ id: uuid, uuid, node, kind: "gpu", index, memory: 80e9, state: "healthy", source: "", reason: "", changed_at: null },
    processes: [`job-${Math.floor(number / ranksPerJob)}/trainer/${number % ranksPerJob}`],
  };
}
