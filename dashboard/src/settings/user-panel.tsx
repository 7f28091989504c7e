import { type CSSProperties, useState } from "react";

import { newKey } from "../api/http";
import { useAddLink, type User, useUsers } from "../api/use-people";
import type { Me } from "../api/wire";
import { Button } from "../ui/button";
import { Dialog, Outlook, Question } from "../ui/dialog";
import { Panel, Skeleton, Trouble } from "../ui/panel";
import { ColumnHeads } from "../ui/table";
import { Ago } from "../ui/text/time";
import styles from "./lines.module.css";
import { ShownOnce } from "./shown-once";
import { UserDialog } from "./user-dialog";

const COLUMNS = { "--columns": "minmax(120px, 2fr) 100px 100px 90px minmax(190px, 1fr)" } as CSSProperties;

/** All users with their roles; adds users, changes roles, creates links. */
export function UserPanel({ me }: { me: Me }) {
  const users = useUsers();
  const [changed, setChanged] = useState<User | "new" | null>(null);
  const [linked, setLinked] = useState("");
  return (
    <Panel
      title="People"
      tools={
        <Button data-testid="user-add" onClick={() => setChanged("new")}>
          Add a user
        </Button>
      }
    >
      {users.error ? <Trouble {...users.error.problem} /> : null}
      {users.isPending ? <Skeleton height={80} /> : null}
      {users.data ? (
        <div role="table" aria-label="People" style={COLUMNS}>
          <ColumnHeads heads={["User", "Role", "State", "Since", ""]} />
          {users.data.map((user) => (
            <UserLine key={user.name} user={user} isMe={user.name === me.user} onChange={() => setChanged(user)} onLink={() => setLinked(user.name)} />
          ))}
        </div>
      ) : null}
      {changed ? <UserDialog user={changed === "new" ? undefined : changed} users={users.data ?? []} onClose={() => setChanged(null)} /> : null}
      {linked ? <LinkDialog user={linked} onClose={() => setLinked("")} /> : null}
    </Panel>
  );
}

interface Props {
  user: User;
  isMe: boolean;
  onChange: () => void;
  onLink: () => void;
}

/** One user. */
function UserLine({ user, isMe, onChange, onLink }: Props) {
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
          <Button aria-label={`Create a link for ${user.name}`} data-testid="link-add" onClick={onLink}>
            Create a link
          </Button>
        )}
      </span>
    </div>
  );
}

/** Create a link that signs a user in once. */
function LinkDialog({ user, onClose }: { user: string; onClose: () => void }) {
  const [key] = useState(newKey);
  const add = useAddLink();
  return (
    <Dialog title={`A link for ${user}`} onClose={onClose}>
      {add.data ? (
        <ShownOnce text={add.data.url} until={add.data.expires_at} onClose={onClose}>
          Send it to {user}. It works once, within a day, and is not shown again.
        </ShownOnce>
      ) : (
        <Question
          about="The browser that opens the link is signed in for 30 days."
          done="Create the link"
          isReady
          isBusy={add.isPending}
          problem={add.error?.problem ?? null}
          onConfirm={() => add.mutate({ user, key })}
          onClose={onClose}
        >
          <Outlook lines={[`A link is created that signs ${user} in once, within a day.`]} command={`loom tokens link ${user}`} hint="" />
        </Question>
      )}
    </Dialog>
  );
}
