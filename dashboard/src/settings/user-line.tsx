import type { User } from "../api/use-people";
import { Ago } from "../ui/ago";
import { Button } from "../ui/button";
import styles from "./lines.module.css";

interface Props {
  user: User;
  isMe: boolean;
  onChange: () => void;
  onLink: () => void;
}

/** Somebody who may come in. */
export function UserLine({ user, isMe, onChange, onLink }: Props) {
  const state = user.disabled ? "disabled" : "enabled";
  return (
    <div role="row" className={styles.line} data-testid="user" data-user={user.name} data-state={state}>
      <b role="cell">
        {user.name}
        {isMe ? <span className={styles.soft}> (you)</span> : null}
      </b>
      <span role="cell">{user.role}</span>
      <span role="cell">{state}</span>
      <span role="cell">
        <Ago time={user.created_at} />
      </span>
      <span role="cell" className={styles.tools}>
        <Button aria-label={`Change ${user.name}`} onClick={onChange}>
          Change
        </Button>
        {user.disabled ? null : (
          <Button aria-label={`Make a link for ${user.name}`} data-testid="link-add" onClick={onLink}>
            Make a link
          </Button>
        )}
      </span>
    </div>
  );
}
