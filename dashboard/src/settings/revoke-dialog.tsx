import { useRevoke, type Token } from "../api/use-people";
import { Dialog } from "../ui/dialog";
import { Outlook } from "../ui/outlook";
import { Question } from "../ui/question";

interface Props {
  token: Token;
  isAdmin: boolean;
  isThis: boolean;
  onClose: () => void;
}

/** End a token, for good. */
export function RevokeDialog({ token, isAdmin, isThis, onClose }: Props) {
  const revoke = useRevoke(isAdmin);
  const name = token.label || (token.kind === "cookie" ? "a browser" : token.id);
  return (
    <Dialog title={`Revoke ${name} of ${token.user}`} onClose={onClose}>
      <Question
        about="It cannot be taken back; another token can be made."
        done="Revoke"
        isGrave
        isReady
        isBusy={revoke.isPending}
        problem={revoke.error?.problem ?? null}
        onConfirm={() => revoke.mutate(token.id, { onSuccess: onClose })}
        onClose={onClose}
      >
        <Outlook
          lines={["Whoever uses it is refused at once; their open pages end within seconds."]}
          warnings={isThis ? ["It is the one by which this page is in: you will have to come in again."] : []}
          command={isAdmin ? `loom tokens revoke ${token.id}` : undefined}
          hint=""
        />
      </Question>
    </Dialog>
  );
}
