import type { Check, Checkpoint } from "../api/wire";
import { Button } from "../ui/button";
import { ProgressBar } from "../ui/indicators";
import { bytes, NOTHING, number, span, whole } from "../ui/text/format";
import { Ago } from "../ui/text/time";
import { isUnderWay, partOf, wordsOf } from "./check-words";
import styles from "./checkpoint-line.module.css";
import { CheckpointState } from "./checkpoint-state";

interface Props {
  saved: Checkpoint;
  check: Check | undefined;
  mayVerify: boolean;
  mayResume: boolean;
  onVerify: (step: number) => void;
  onResume: (step: number) => void;
}

/** One checkpoint of the table. */
export function CheckpointLine({ saved, check, mayVerify, mayResume, onVerify, onResume }: Props) {
  const isGood = saved.state === "committed";
  const metrics = Object.entries(saved.metrics).map(([name, value]) => `${name} ${number(value)}`);
  return (
    <tr className={styles.line} data-testid="checkpoint" data-step={saved.step} data-state={saved.state}>
      <td>
        <b className="number">{whole(saved.step)}</b>
      </td>
      <td>
        <CheckpointState state={saved.state} />
        {saved.reason ? <p className={styles.why}>{saved.reason}</p> : null}
        {check && isGood ? <CheckState check={check} /> : null}
      </td>
      <td className="number">{saved.bytes ? bytes(saved.bytes) : NOTHING}</td>
      <td className="number">{span(saved.seconds)}</td>
      <td>
        <Ago time={saved.committed_at ?? saved.created_at} />
      </td>
      <td>{[saved.trigger, saved.trainer].filter(Boolean).join(", ") || NOTHING}</td>
      <td className={styles.place} title={saved.path || saved.place}>
        {metrics.join(", ") || saved.path || saved.place || NOTHING}
      </td>
      <td>
        <div className={styles.doing}>
          {mayVerify && isGood ? (
            <Button data-testid="verify" disabled={isUnderWay(check)} onClick={() => onVerify(saved.step)}>
              Verify<span className="unseen"> the checkpoint of step {saved.step}</span>
            </Button>
          ) : null}
          {mayResume && isGood ? (
            <Button data-testid="resume-from" onClick={() => onResume(saved.step)}>
              Resume from
            </Button>
          ) : null}
        </div>
      </td>
    </tr>
  );
}

/** How a checkpoint that is read and hashed stands. */
function CheckState({ check }: { check: Check }) {
  return (
    <div className={styles.check} role="status" data-testid="check" data-step={check.step} data-state={check.state}>
      {isUnderWay(check) ? <ProgressBar part={partOf(check)} label={`Reading the checkpoint of step ${check.step}`} /> : null}
      <p>{wordsOf(check)}</p>
    </div>
  );
}
