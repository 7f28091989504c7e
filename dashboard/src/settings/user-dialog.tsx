import { useState } from "react";

import { usePutUser, type User } from "../api/use-people";
import { Dialog, Outlook, Question } from "../ui/dialog";
import { Choice, Field } from "../ui/field";
import styles from "./lines.module.css";
import { ROLES, userCommand, userLines } from "./people";

interface Props {
  /** The user to change; undefined for a new one. */
  user: User | undefined;
  users: readonly User[];
  onClose: () => void;
}

/** Create a user, change the role of one, or disable one. */
export function UserDialog({ user, users, onClose }: Props) {
  const [name, setName] = useState(user?.name ?? "");
  const [role, setRole] = useState<User["role"]>(user?.role ?? "viewer");
  const [disabled, setDisabled] = useState(user?.disabled ?? false);
  const put = usePutUser();
  const known = users.find((one) => one.name === name.trim());
  const wrong = !user && known ? "A user with this name already exists." : null;
  const isReady = name.trim() !== "" && !wrong && (role !== user?.role || disabled !== user.disabled);
  const confirm = () => put.mutate({ name: name.trim(), role, disabled }, { onSuccess: onClose });
  return (
    <Dialog title={user ? `Change ${user.name}` : "Add a user"} onClose={onClose}>
      <Question
        about="A viewer reads, an operator also submits and controls jobs, an admin also manages users."
        done={user ? "Apply" : "Add"}
        isGrave={disabled && !user?.disabled}
        isReady={isReady}
        isBusy={put.isPending}
        problem={put.error?.problem ?? null}
        onConfirm={confirm}
        onClose={onClose}
      >
        {user ? null : (
          <Field label="Name" data-testid="user-name" placeholder="alice" hint="a-z 0-9 . _ @ + -" maxLength={64} value={name} wrong={wrong} onChange={(event) => setName(event.target.value)} />
        )}
        <Choice label="Role" value={role} options={ROLES} onChange={(next) => setRole(next as User["role"])} />
        {user ? (
          <label className={styles.tick}>
            <input type="checkbox" checked={disabled} onChange={(event) => setDisabled(event.target.checked)} />
            <span>Disable {user.name}</span>
          </label>
        ) : null}
        <Outlook
          lines={isReady ? userLines(name.trim(), role, disabled, user) : []}
          command={isReady ? userCommand(name.trim(), role, disabled, user) : undefined}
          hint={user ? "Choose what to change." : "Enter a name."}
        />
      </Question>
    </Dialog>
  );
}
