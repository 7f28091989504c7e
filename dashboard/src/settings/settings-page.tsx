import { useMe } from "../api/use-people";
import { Skeleton } from "../ui/panel";
import { RetentionPanel } from "./retention-panel";
import styles from "./settings-page.module.css";
import { TokenPanel } from "./token-panel";
import { UserPanel } from "./user-panel";

/** Who may come in and how long things are kept: for an admin all of it, for others what is theirs. */
export function SettingsPage() {
  const me = useMe().data;
  const isAdmin = me?.role === "admin";
  return (
    <div className={styles.page}>
      <title>Settings · torchLoom</title>
      <h1>Settings</h1>
      {me ? (
        <>
          {isAdmin ? <UserPanel me={me} /> : null}
          <TokenPanel me={me} isAdmin={isAdmin} />
          <RetentionPanel />
        </>
      ) : (
        <Skeleton height={280} />
      )}
    </div>
  );
}
