import { useState } from "react";

import { newKey } from "../api/http";
import { useAddToken, useUsers } from "../api/use-people";
import type { Me } from "../api/wire";
import { Dialog, Outlook, Question } from "../ui/dialog";
import { Choice, Field } from "../ui/field";
import { secondsOf, tokenCommand } from "./people";
import { ShownOnce } from "./shown-once";

/** Create a token of a user; it is shown once. */
export function TokenDialog({ me, onClose }: { me: Me; onClose: () => void }) {
  const users = (useUsers().data ?? []).filter(({ disabled }) => !disabled);
  const [user, setUser] = useState(me.user);
  const [label, setLabel] = useState("");
  const [days, setDays] = useState("");
  const [key, setKey] = useState(newKey);
  const add = useAddToken();
  const read = secondsOf(days);
  const role = users.find(({ name }) => name === user)?.role ?? me.role;
  const change = (how: () => void) => {
    how();
    setKey(newKey()); // another request than the one before
    add.reset();
  };
  if (add.data) {
    return (
      <Dialog title={`A token of ${add.data.user}`} onClose={onClose}>
        <ShownOnce text={add.data.token} until={add.data.expires_at} onClose={onClose}>
          This is the token. It is not shown again and is not stored.
        </ShownOnce>
      </Dialog>
    );
  }
  const seconds = "seconds" in read ? read.seconds : null;
  return (
    <Dialog title="Create a token" onClose={onClose}>
      <Question
        about="A program with this token acts as its user, from wherever the plane can be reached."
        done="Create the token"
        isReady={"seconds" in read}
        isBusy={add.isPending}
        problem={add.error?.problem ?? null}
        onConfirm={() => add.mutate({ user, label: label.trim(), seconds, key })}
        onClose={onClose}
      >
        <Choice label="User" value={user} options={users.map(({ name, role: own }) => [name, `${name} (${own})`])} onChange={(next) => change(() => setUser(next))} />
        <Field label="Label" data-testid="token-label" placeholder="nightly" hint="What it is for" maxLength={200} value={label} onChange={(event) => change(() => setLabel(event.target.value))} />
        <Field label="Days" inputMode="decimal" placeholder="no expiry" hint="How long it is valid" value={days} wrong={"wrong" in read ? read.wrong : null} onChange={(event) => change(() => setDays(event.target.value))} />
        <Outlook
          lines={"seconds" in read ? [`A token of ${user} with the role ${role} is created. It is shown once.`] : []}
          command={"seconds" in read ? tokenCommand(user, label.trim(), days) : undefined}
          hint="Enter how long it is valid."
        />
      </Question>
    </Dialog>
  );
}
