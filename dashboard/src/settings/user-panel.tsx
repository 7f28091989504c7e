import { useState, type CSSProperties } from "react";

import { useUsers, type User } from "../api/use-people";
import type { Me } from "../api/wire";
import { Button } from "../ui/button";
import { ColumnHeads } from "../ui/column-heads";
import { Panel } from "../ui/panel";
import { Skeleton } from "../ui/skeleton";
import { Trouble } from "../ui/trouble";
import { LinkDialog } from "./link-dialog";
import { UserDialog } from "./user-dialog";
import { UserLine } from "./user-line";

const COLUMNS = { "--columns": "minmax(120px, 2fr) 100px 100px 90px minmax(190px, 1fr)" } as CSSProperties;

/** Everybody who may come in, and as what; somebody new, another role, a link. */
export function UserPanel({ me }: { me: Me }) {
  const users = useUsers();
  const [changed, setChanged] = useState<User | "new" | null>(null);
  const [linked, setLinked] = useState("");
  return (
    <Panel
      title="People"
      tools={
        <Button data-testid="user-add" onClick={() => setChanged("new")}>
          Add somebody
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
