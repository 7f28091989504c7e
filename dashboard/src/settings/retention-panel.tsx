import { useRetention } from "../api/use-people";
import { FactList, Panel, Skeleton, Trouble } from "../ui/panel";
import { CopyLine } from "../ui/text/copy";
import styles from "./lines.module.css";
import { retentionLines } from "./people";

/** How long ended runs are kept; it is changed in a file, where only the plane's user can. */
export function RetentionPanel() {
  const kept = useRetention();
  return (
    <Panel title="How long things are kept">
      {kept.error ? <Trouble {...kept.error.problem} /> : null}
      {kept.isPending ? <Skeleton height={80} /> : null}
      {kept.data ? (
        <div className={styles.once} data-testid="retention">
          {kept.data.problem ? <Trouble detail={kept.data.problem} remedy="Nothing is removed until the config file is corrected." /> : null}
          <FactList facts={retentionLines(kept.data)} />
          <p className={styles.soft}>
            Ages count from the end of a run. They are set under <code>[retention]</code> in <code>~/.loomconfig</code> of the plane’s
            user; active runs and the newest ones are always kept. This shows what would be removed now:
          </p>
          <CopyLine text="loom doctor --clean --dryrun" label="Copy the command" />
        </div>
      ) : null}
    </Panel>
  );
}
