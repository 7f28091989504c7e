import { CopyLine } from "../ui/copy-line";
import { useSearch } from "../ui/router";
import type { Route } from "./routes";
import { sameOf } from "./same";
import styles from "./same-line.module.css";

/** What to type in a terminal to see the same. */
export function SameLine({ route }: { route: Route }) {
  const command = sameOf(route, new URLSearchParams(useSearch()));
  if (!command) return null;
  return (
    <aside className={styles.same} aria-label="The same in a terminal" data-testid="same">
      <span>The same in a terminal</span>
      <CopyLine text={command} label="Copy the loom command" />
    </aside>
  );
}
