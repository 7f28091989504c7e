import { useState, type ReactNode } from "react";

import { useDevicePreview, useMark, type Mark } from "../api/use-devices";
import type { Device, Health } from "../api/wire";
import { Choice } from "../ui/choice";
import { Dialog } from "../ui/dialog";
import { Field } from "../ui/field";
import { Outlook } from "../ui/outlook";
import { Question } from "../ui/question";
import { useSettled } from "../ui/use-settled";
import { MarkOutcome } from "./mark-outcome";
import { SAYS, saysFor } from "./marks";

const PAUSE = 250; // milliseconds without a key until it is looked what would happen

interface Props {
  title: string;
  /** Of which it is said, as they are now. */
  devices: readonly Device[];
  /** Facts that stand above the question. */
  children?: ReactNode;
  onClose: () => void;
}

/** Say something of devices: what, and why; see what would happen, confirm, watch it happen. */
export function MarkDialog({ title, devices, children, onClose }: Props) {
  const says = saysFor(devices);
  const [picked, setPicked] = useState("");
  const [reason, setReason] = useState("");
  const state: Health = says.find((one) => one === picked) ?? says[0] ?? "draining"; // others may say it meanwhile
  const uuids = devices.map(({ uuid }) => uuid);
  const mark: Mark = { devices: uuids, state, reason: reason.trim() };
  const preview = useDevicePreview(useSettled(mark, PAUSE));
  const order = useMark();
  if (order.data) {
    return (
      <Dialog title={title} onClose={onClose}>
        <MarkOutcome uuids={order.data.map(({ uuid }) => uuid)} onClose={onClose} />
      </Dialog>
    );
  }
  const found = preview.data?.state === state ? preview.data : undefined;
  const change = (next: string) => {
    setPicked(next);
    order.reset();
  };
  return (
    <Dialog title={title} onClose={onClose}>
      {children}
      <Question
        about={SAYS[state].about}
        done={SAYS[state].done}
        isGrave={SAYS[state].isGrave}
        isReady={found !== undefined && found.devices.length > 0}
        isBusy={order.isPending}
        problem={order.error?.problem ?? null}
        onConfirm={() => order.mutate({ ...mark, devices: found?.devices ?? [] })}
        onClose={onClose}
      >
        <Choice label="What to say" value={state} options={says.map((one) => [one, SAYS[one].option])} onChange={change} />
        <Field
          label="Reason"
          data-testid="reason"
          placeholder="xid 79"
          hint="Kept with the event, for whoever looks later"
          maxLength={1000}
          value={reason}
          onChange={(event) => setReason(event.target.value)}
        />
        <Outlook
          lines={found?.summary ?? []}
          warnings={found?.warnings ?? []}
          refused={preview.error?.problem}
          command={found?.command}
          hint="Looking."
        />
      </Question>
    </Dialog>
  );
}
