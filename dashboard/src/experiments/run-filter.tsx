import { FilterBar } from "../ui/filter-bar";
import { useWord } from "../ui/router";
import { SearchLine } from "../ui/search-line";
import styles from "./run-filter.module.css";

/** The line by which runs are found; it is in the address. */
export function RunFilter() {
  const [line, setLine] = useWord("q");
  return (
    <FilterBar>
      <div className={styles.line}>
        <SearchLine
          label="Filter runs"
          data-testid="run-filter"
          placeholder="Words, owner:ada, tag:night, loss<0.3, max:acc>=0.9"
          value={line}
          onChange={(event) => setLine(event.target.value)}
        />
        <p>
          Words, <code>state:failed</code>, <code>owner:</code>, <code>project:</code>, <code>tag:</code>,{" "}
          <code>commit:</code>, <code>since:2026-01-31</code>, and conditions on metrics: <code>loss&lt;0.3</code>,{" "}
          <code>best:acc&gt;=0.9</code>
        </p>
      </div>
    </FilterBar>
  );
}
