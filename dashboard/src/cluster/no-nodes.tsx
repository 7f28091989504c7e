import { CopyLine } from "../ui/copy-line";
import { Empty } from "../ui/empty";

/** No node has come: what to do. */
export function NoNodes() {
  return (
    <Empty title="No node has come yet">
      <p>The plane starts an agent for its own machine. See how it is, and start it again if need be.</p>
      <CopyLine text="loom up --status" label="Copy the command" />
      <p>Nodes of other machines come with the jobs that run there.</p>
    </Empty>
  );
}
