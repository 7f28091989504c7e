import type { ClusterValue } from "../api/wire";
import { Dialog } from "../ui/dialog";
import { DeviceFacts } from "./device-facts";
import { MarkDialog } from "./mark-dialog";
import { labelOf, namesOf } from "./marks";

interface Props {
  value: ClusterValue;
  may: boolean;
  /** One of them is not empty: what the address names. */
  device: string;
  node: string;
  onClose: () => void;
}

/** What is known of a device, or all devices of a node, and what may be said of them. */
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
