import { expect, test } from "vitest";

import { bigCluster } from "./big";
import { labelOf, namesOf, processOf, reportsFor } from "./marks";

const devices = bigCluster(1, 2, 2).devices;
const [first] = devices;

test("a healthy device can be drained or failed, another one also recovered", () => {
  expect(reportsFor(devices)).toEqual(["draining", "failed"]);
  expect(reportsFor(devices.map((one) => ({ ...one, state: "failed" })))).toEqual(["healthy", "draining"]);
  expect(reportsFor(devices.map((one, at) => ({ ...one, state: at ? "draining" : "healthy" })))).toEqual(["healthy", "draining", "failed"]);
});

test("a device is called by its number, or by its name without that of its node", () => {
  if (!first) throw new Error("there are devices");

  expect(labelOf(first)).toBe("gpu 0");
  expect(labelOf({ ...first, kind: "", uuid: "node1/npu/7" })).toBe("npu/7");
  expect(labelOf({ ...first, kind: "", uuid: "NPU-7" })).toBe("NPU-7");
});

test("a process is a rank of a job, by the job's name where it has one", () => {
  const names = namesOf([
    { id: "job-1", name: "gpt", state: "RUNNING", owner: "ada" },
    { id: "job-2", name: "", state: "RUNNING", owner: "ada" },
  ]);

  const processes = ["job-1/trainer/3", "job-2/trainer/0", "job-3/trainer/1"].map((id) => processOf(id, names));

  expect(processes).toEqual(["rank 3 of gpt", "rank 0 of job-2", "rank 1 of job-3"]);
});
