import { listed } from "../charts/words";
import { Button } from "../ui/button";
import { CopyLine } from "../ui/copy-line";
import { go, useWord } from "../ui/router";
import styles from "./compare-bar.module.css";
import { compareAddress, MOST_RUNS } from "./compare-address";

/** What is chosen, and the way to see it side by side. */
export function CompareBar() {
  const [picked, setPicked] = useWord("pick");
  const runs = listed(picked);
  if (!runs.length) return null;
  const isMany = runs.length > MOST_RUNS;
  return (
    <div className={styles.bar} role="region" aria-label="Chosen runs">
      <span role="status">
        {runs.length} {runs.length === 1 ? "run" : "runs"} chosen
        {runs.length === 1 ? ", choose another to compare" : isMany ? `; ${MOST_RUNS} at most are compared` : ""}
      </span>
      {runs.length > 1 && !isMany ? (
        <div className={styles.line}>
          <CopyLine text={`loom compare ${runs.join(" ")}`} label="Copy the command" />
        </div>
      ) : null}
      <Button tone="quiet" onClick={() => setPicked("")}>
        Clear
      </Button>
      <Button
        tone="main"
        data-testid="compare"
        disabled={runs.length < 2 || isMany}
        onClick={() => go(compareAddress(runs))}
      >
        Compare
      </Button>
    </div>
  );
}
