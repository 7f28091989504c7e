import { useWindowVirtualizer } from "@tanstack/react-virtual";
import { type CSSProperties, type ReactNode, useCallback, useMemo } from "react";

import { useTop, useWidth } from "../ui/hooks";
import { Icon } from "../ui/icon";
import { Empty } from "../ui/panel";
import { useWord } from "../ui/router";
import { columnsOf, type Group, groupsOf, rowsOf } from "./data/groups";
import { listed, toggled } from "./data/words";
import styles from "./metric-grid.module.css";

const [HEAD, CARD, GAP] = [44, 276, 12]; // heights and space, as the style sheet has them
const [LEAST, MOST] = [400, 4]; // pixels of a chart, and how many beside each other

interface Props {
  metrics: readonly string[];
  tools: ReactNode;
  /** The charts of one row. */
  row: (metrics: readonly string[]) => ReactNode;
}

/** A chart for each metric, in groups; only rows in view are in the page. */
export function MetricGrid({ metrics, tools, row: charts }: Props) {
  const [words] = useWord("q");
  const [pins] = useWord("pin");
  const [folds] = useWord("fold");
  const [width, measured] = useWidth();
  const [margin, body] = useTop();
  const columns = columnsOf(width, LEAST, GAP, MOST);
  const rows = useMemo(() => {
    const groups = groupsOf(metrics, { words, pins: listed(pins), folds: listed(folds) });
    return rowsOf(groups, columns);
  }, [metrics, words, pins, folds, columns]);
  const view = useWindowVirtualizer({
    count: rows.length,
    estimateSize: (at) => (rows[at]?.kind === "head" ? HEAD : CARD + GAP),
    getItemKey: useCallback((at: number) => rows[at]?.key ?? at, [rows]),
    overscan: 1,
    scrollMargin: margin,
  });
  return (
    <section className={styles.grid} aria-label="Charts" ref={measured}>
      {tools}
      {metrics.length === 0 ? (
        <Empty title="No metrics yet">
          <p>The loss appears here once the script logs it: loom.init().log(loss=loss).</p>
        </Empty>
      ) : rows.length === 0 ? (
        <Empty title={`No metric has “${words}” in its name`}>
          <p>There are {metrics.length} in all.</p>
        </Empty>
      ) : null}
      <div ref={body} className={styles.body} style={{ height: view.getTotalSize() }}>
        {width > 0 &&
          view.getVirtualItems().map(({ index, key, start }) => {
            const row = rows[index];
            if (!row) return null;
            const style = { transform: `translateY(${start - margin}px)` };
            return row.kind === "head" ? (
              <GroupHead key={key} group={row.group} style={style} />
            ) : (
              <div key={key} className={styles.row} style={{ ...style, gridTemplateColumns: `repeat(${row.columns}, minmax(0, 1fr))` }}>
                {charts(row.metrics)}
              </div>
            );
          })}
      </div>
    </section>
  );
}

/** The name of a group of charts; it folds them. */
function GroupHead({ group, style }: { group: Group; style: CSSProperties }) {
  const [folds, setFolds] = useWord("fold");
  return (
    <h2 className={styles.head} style={style} data-testid="chart-group" data-name={group.name}>
      <button
        type="button"
        aria-expanded={!group.isFolded}
        onClick={() => setFolds(toggled(folds, group.name))}
      >
        <Icon name="back" size={14} />
        {group.name} <span className="number">{group.metrics.length}</span>
      </button>
    </h2>
  );
}
