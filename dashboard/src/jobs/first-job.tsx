import { CopyLine } from "../ui/copy-line";
import { Empty } from "../ui/empty";

/** Nobody has run anything yet: what to run. */
export function FirstJob() {
  return (
    <Empty title="Nothing has run here yet">
      <p>Run any training script as you are used to, with loom in front. It appears here as it starts.</p>
      <CopyLine text="loom run -n 2 train.py" label="Copy the command" />
      <p>No script at hand? This trains something small on every rank.</p>
      <CopyLine text="loom test -n 2" label="Copy the command" />
    </Empty>
  );
}
