import { useLive } from "../api/use-live";
import { Button } from "../ui/button";
import { Foot } from "../ui/foot";
import { HealthMark } from "./health-mark";
import { labelOf, namesOf, processOf } from "./marks";
import styles from "./mark-outcome.module.css";
import { healthOf } from "./weave";

/** How devices are now, and which ranks are on them, as that changes. */
export function MarkOutcome({ uuids, onClose }: { uuids: readonly string[]; onClose: () => void }) {
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
                ? `It has ${device.processes.map((id) => processOf(id, names)).join(", ")}.`
                : "No rank is on it."}
            </p>
          </li>
        ))}
      </ul>
      <p className={styles.soft}>The timeline of each job tells what became of its ranks.</p>
      <Foot>
        <Button tone="main" onClick={onClose}>
          Done
        </Button>
      </Foot>
    </div>
  );
}
