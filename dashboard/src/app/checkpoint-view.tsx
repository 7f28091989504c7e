import { useState } from "react";

import { useMe } from "../api/use-me";
import type { JobRow, Verb } from "../api/wire";
import { CheckpointPanel } from "../checkpoints/checkpoint-panel";
import { CommandDialog } from "../control/command-dialog";

/** The checkpoints of a job, and the question whether to go on from one. */
export function CheckpointView({ job, verbs }: { job: JobRow; verbs: readonly Verb[] }) {
  const [from, setFrom] = useState<number | null>(null);
  const me = useMe();
  const mayVerify = me.data !== undefined && me.data.role !== "viewer";
  const mayResume = verbs.includes("resume") && job.ended_at !== null; // a paused one goes on where it is
  return (
    <>
      <CheckpointPanel job={job.id} mayVerify={mayVerify} mayResume={mayResume} onResume={setFrom} />
      {from === null ? null : (
        <CommandDialog job={job} verb="resume" knobs={[]} from={String(from)} onClose={() => setFrom(null)} />
      )}
    </>
  );
}
