import { useState } from "react";

import { newKey } from "../api/keys";
import { useAddLink } from "../api/use-people";
import { Dialog } from "../ui/dialog";
import { Outlook } from "../ui/outlook";
import { Question } from "../ui/question";
import { ShownOnce } from "./shown-once";

/** Make a link that lets somebody in once. */
export function LinkDialog({ user, onClose }: { user: string; onClose: () => void }) {
  const [key] = useState(newKey);
  const add = useAddLink();
  return (
    <Dialog title={`A link for ${user}`} onClose={onClose}>
      {add.data ? (
        <ShownOnce text={add.data.url} until={add.data.expires_at} onClose={onClose}>
          Send it to {user}. It is good once, within a day, and is not shown again.
        </ShownOnce>
      ) : (
        <Question
          about="Whoever opens the link is in, in that browser, for 30 days."
          done="Create the link"
          isReady
          isBusy={add.isPending}
          problem={add.error?.problem ?? null}
          onConfirm={() => add.mutate({ user, key })}
          onClose={onClose}
        >
          <Outlook lines={[`A link is made that lets ${user} in once, within a day.`]} command={`loom tokens link ${user}`} hint="" />
        </Question>
      )}
    </Dialog>
  );
}
