import type { CSSProperties } from "react";

import { Icon } from "../ui/icon";
import { useWord } from "../ui/router";
import styles from "./group-head.module.css";
import type { Group } from "./groups";
import { toggled } from "./words";

/** The name of a group of charts; it folds them. */
export function GroupHead({ group, style }: { group: Group; style: CSSProperties }) {
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
