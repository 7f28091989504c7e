import { useLive } from "../api/use-live";
import type { Command } from "../api/wire";
import { Button } from "../ui/button";
import { Foot } from "../ui/foot";
import { CommandAcks } from "./command-acks";
import styles from "./command-outcome.module.css";
import { outcomeOf } from "./outcome";
import { OutcomeLine } from "./outcome-line";

interface Props {
  job: string;
  asked: Command | null;
  onClose: () => void;
}

/** What becomes of a command, rank by rank, as the answers come. */
export function CommandOutcome({ job, asked, onClose }: Props) {
  const { value } = useLive({ topic: "commands", job });
  const now = value?.items.find(({ id }) => id === asked?.id) ?? asked;
  return (
    <div className={styles.outcome} data-testid="outcome" data-state={now?.state ?? "asked"}>
      {now ? (
        <>
          <OutcomeLine outcome={outcomeOf(now)} />
          <CommandAcks acks={now.ranks} />
        </>
      ) : (
        <p>It is being ended; its state says when it has.</p>
      )}
      <Foot>
        <Button tone="main" onClick={onClose}>
          Done
        </Button>
      </Foot>
    </div>
  );
}
