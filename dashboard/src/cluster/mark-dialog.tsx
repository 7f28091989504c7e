import { type ReactNode, useState } from "react";

import { type Mark, useDevicePreview, useMark } from "../api/use-devices";
import { useLive } from "../api/use-live";
import type { Device, Health } from "../api/wire";
import { Button } from "../ui/button";
import { Dialog, Foot, Outlook, Question } from "../ui/dialog";
import { Choice, Field } from "../ui/field";
import { useSettled } from "../ui/hooks";
import { HealthMark } from "./health-mark";
import styles from "./mark-dialog.module.css";
import { labelOf, namesOf, processOf, REPORTS, reportsFor } from "./marks";
import { healthOf } from "./weave";

const PAUSE = 250; // milliseconds without a key until it is looked what would happen

interface Props {
  title: string;
  /** The devices to report, in their current state. */
  devices: readonly Device[];
  /** Facts that stand above the question. */
  children?: ReactNode;
  onClose: () => void;
}

/** Report the health of devices: choose a state and a reason, preview the effect, confirm, watch it. */
export function MarkDialog({ title, devices, children, onClose }: Props) {
  const reports = reportsFor(devices);
  const [picked, setPicked] = useState("");
  const [reason, setReason] = useState("");
  const state: Health = reports.find((one) => one === picked) ?? reports[0] ?? "draining"; // another user may report it meanwhile
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
        about={REPORTS[state].about}
        done={REPORTS[state].done}
        isGrave={REPORTS[state].isGrave}
        isReady={found !== undefined && found.devices.length > 0}
        isBusy={order.isPending}
        problem={order.error?.problem ?? null}
        onConfirm={() => order.mutate({ ...mark, devices: found?.devices ?? [] })}
        onClose={onClose}
      >
        <Choice label="New state" value={state} options={reports.map((one) => [one, REPORTS[one].option])} onChange={change} />
        <Field
          label="Reason"
          data-testid="reason"
          placeholder="xid 79"
          hint="Stored with the event"
          maxLength={1000}
          value={reason}
          onChange={(event) => setReason(event.target.value)}
        />
        <Outlook
          lines={found?.summary ?? []}
          warnings={found?.warnings ?? []}
          refused={preview.error?.problem}
          command={found?.command}
          hint="Checking."
        />
      </Question>
    </Dialog>
  );
}

/** How devices are now, and which ranks are on them, as that changes. */
function MarkOutcome({ uuids, onClose }: { uuids: readonly string[]; onClose: () => void }) {
  const { value } = useLive({ topic: "cluster" });
  const names = namesOf(value?.jobs ?? []);
  const devices = value?.devices.filter(({ uuid }) => uuids.includes(uuid)) ?? [];
  return (
    <div className={styles.outcome} data-testid="outcome">
      <ul>
        {devices.map((device) => (
          <li key={device.uuid}>
            <b>{labelOf(device)}</b> <HealthMark health={healthOf(device)} />
            <p>
              {device.processes.length
                ? `Used by ${device.processes.map((id) => processOf(id, names)).join(", ")}.`
                : "No rank uses it."}
            </p>
          </li>
        ))}
      </ul>
      <p className={styles.soft}>The timeline of each job shows what happened to its ranks.</p>
      <Foot>
        <Button tone="main" onClick={onClose}>
          Done
        </Button>
      </Foot>
    </div>
  );
}
