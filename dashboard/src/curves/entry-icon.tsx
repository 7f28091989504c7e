import type { EntryKind } from "../api/wire";
import { Icon, type IconName } from "../ui/icon";
import styles from "./entry-icon.module.css";

const ICONS: Record<EntryKind, IconName> = {
  knob: "knob",
  command: "play",
  checkpoint: "checkpoint",
  restart: "recovery",
  recovery: "recovery",
  rank: "rank",
  node: "node",
  alert: "alert",
  state: "state",
  event: "circle",
};

/** The shape and colour of a kind of happening. */
export function EntryIcon({ kind }: { kind: EntryKind }) {
  return (
    <span className={styles.icon} data-kind={kind}>
      <Icon name={ICONS[kind]} size={14} />
    </span>
  );
}
