import type { ReactNode } from "react";

import type { ClusterValue, Device } from "../api/wire";
import { Dialog } from "../ui/dialog";
import { FactList } from "../ui/panel";
import { Link } from "../ui/router";
import { bytes } from "../ui/text/format";
import { Ago } from "../ui/text/time";
import { HealthMark } from "./health-mark";
import { MarkDialog } from "./mark-dialog";
import { labelOf, namesOf, processOf } from "./marks";
import { healthOf } from "./weave";

interface Props {
  value: ClusterValue;
  may: boolean;
  /** One of them is not empty: what the address names. */
  device: string;
  node: string;
  onClose: () => void;
}

/** What is known of a device, or all devices of a node, and the reports on them. */
export function ClusterDialog({ value, may, device: uuid, node, onClose }: Props) {
  const device = value.devices.find((one) => one.uuid === uuid);
  const names = namesOf(value.jobs);
  if (device) {
    const title = `${labelOf(device)} of ${device.node || "no node"}`;
    const facts = <DeviceFacts device={device} names={names} />;
    return may ? (
      <MarkDialog title={title} devices={[device]} onClose={onClose}>
        {facts}
      </MarkDialog>
    ) : (
      <Dialog title={title} onClose={onClose}>
        {facts}
      </Dialog>
    );
  }
  const own = value.devices.filter((one) => one.node === node);
  if (!may || !node || own.length === 0) return null;
  return <MarkDialog title={`All ${own.length} devices of ${node}`} devices={own} onClose={onClose} />;
}

/** All that is known of a device. */
function DeviceFacts({ device, names }: { device: Device; names: ReadonlyMap<string, string> }) {
  const facts: (readonly [string, ReactNode])[] = [
    ["Name", device.uuid],
    ["Node", device.node || "no node"],
    ["State", <HealthMark key="state" health={healthOf(device)} />],
  ];
  if (device.memory) facts.push(["Memory", bytes(device.memory)]);
  if (device.source) facts.push(["Reported by", <Reporter key="reporter" device={device} />]);
  if (device.reason) facts.push(["Reason", device.reason]);
  facts.push(["Used by", device.processes.length ? device.processes.map((id) => <User key={id} id={id} names={names} />) : "no rank"]);
  return <FactList facts={facts} />;
}

function Reporter({ device }: { device: Device }) {
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
