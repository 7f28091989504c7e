import { useState } from "react";

import { useCheckpoints, useChecks } from "../api/use-checkpoints";
import { Button } from "../ui/button";
import { Empty, Panel, Skeleton, Trouble } from "../ui/panel";
import { CopyLine } from "../ui/text/copy";
import { bytes, whole } from "../ui/text/format";
import { Ago } from "../ui/text/time";
import styles from "./checkpoint-panel.module.css";
import { CheckpointStrip } from "./checkpoint-strip";
import { CheckpointTable } from "./checkpoint-table";
import { standingOf } from "./standing";

const [FEW, MANY] = [100, 1000];

interface Props {
  job: string;
  mayVerify: boolean;
  mayResume: boolean;
  onResume: (step: number) => void;
}

/** The checkpoints of a job, their state, and the actions on them. */
export function CheckpointPanel({ job, mayVerify, mayResume, onResume }: Props) {
  const [limit, setLimit] = useState(FEW);
  const { data, error } = useCheckpoints(job, limit);
  const { byStep, begin } = useChecks(job);
  if (error) return <Trouble detail={error.problem.detail} remedy={error.problem.remedy} />;
  if (!data) return <Skeleton height={240} />;
  const { newest, usable, bytes: size, broken } = standingOf(data.items);
  if (data.items.length === 0) {
    return (
      <Empty title="No checkpoints yet">
        <p>A checkpoint appears here as soon as the ranks begin to save it.</p>
      </Empty>
    );
  }
  return (
    <Panel title="Checkpoints">
      <p className={styles.sum}>
        {newest ? (
          <>
            <b>{whole(usable)}</b> usable, {bytes(size)} in total; the newest is of step{" "}
            <b>{whole(newest.step)}</b>, <Ago time={newest.committed_at} /> old.
          </>
        ) : (
          "There is no usable checkpoint."
        )}
      </p>
      {broken.length ? (
        <Trouble
          detail={`Unreadable or incomplete: step ${broken.map(({ step }) => whole(step)).join(", ")}.`}
          remedy="The job resumes from the newest complete checkpoint."
        />
      ) : null}
      <CheckpointStrip items={data.items} />
      {begin.error ? <Trouble detail={begin.error.problem.detail} remedy={begin.error.problem.remedy} /> : null}
      <CheckpointTable
        items={data.items}
        checks={byStep}
        mayVerify={mayVerify}
        mayResume={mayResume}
        onVerify={(step) => begin.mutate(step)}
        onResume={onResume}
      />
      <footer className={styles.foot}>
        {data.next && limit < MANY ? (
          <Button tone="quiet" onClick={() => setLimit(MANY)}>
            Show earlier ones
          </Button>
        ) : null}
        <p>To verify all checkpoints on the machine that has them:</p>
        <CopyLine text={`loom checkpoint verify ${job} --all`} label="Copy the command" />
      </footer>
    </Panel>
  );
}
