import type { ReactNode } from "react";

import type { Device } from "../api/wire";
import { Ago } from "../ui/ago";
import { FactList } from "../ui/fact-list";
import { bytes } from "../ui/format";
import { Link } from "../ui/link";
import { HealthMark } from "./health-mark";
import { processOf } from "./marks";
import { healthOf } from "./weave";

/** All that is known of a device. */
export function DeviceFacts({ device, names }: { device: Device; names: ReadonlyMap<string, string> }) {
  const facts: (readonly [string, ReactNode])[] = [
    ["Name", device.uuid],
    ["Node", device.node || "no node"],
    ["State", <HealthMark key="state" health={healthOf(device)} />],
  ];
  if (device.memory) facts.push(["Memory", bytes(device.memory)]);
  if (device.source) facts.push(["Said by", <Said key="said" device={device} />]);
  if (device.reason) facts.push(["Reason", device.reason]);
  facts.push(["Used by", device.processes.length ? device.processes.map((id) => <User key={id} id={id} names={names} />) : "no rank"]);
  return <FactList facts={facts} />;
}

function Said({ device }: { device: Device }) {
  return (
    <>
      {device.source}, <Ago time={device.changed_at} /> ago
    </>
  );
}

function User({ id, names }: { id: string; names: ReadonlyMap<string, string> }) {
  return (
    <p>
      <Link href={`/jobs/${encodeURIComponent(id.split("/")[0] ?? "")}`}>{processOf(id, names)}</Link>
    </p>
  );
}
