import { type CSSProperties, useState } from "react";

import { type Token, useRevoke, useTokens } from "../api/use-people";
import type { Me } from "../api/wire";
import { Button } from "../ui/button";
import { Dialog, Outlook, Question } from "../ui/dialog";
import { Panel, Skeleton, Trouble } from "../ui/panel";
import { useWord } from "../ui/router";
import { ColumnHeads } from "../ui/table";
import { NOTHING } from "../ui/text/format";
import { Ago, useNow } from "../ui/text/time";
import styles from "./lines.module.css";
import { shownOf, stateOf, type TokenState } from "./people";
import { TokenDialog } from "./token-dialog";

const COLUMNS = { "--columns": "110px minmax(90px, 1fr) minmax(110px, 2fr) 80px 80px 80px minmax(100px, 0.6fr)" } as CSSProperties;
const HEADS = ["Token", "User", "Label", "Kind", "State", "Created", ""];

/** The tokens: of all users for an admin, else one's own. */
export function TokenPanel({ me, isAdmin }: { me: Me; isAdmin: boolean }) {
  const tokens = useTokens(isAdmin);
  const now = useNow();
  const [words, setWords] = useWord("tokens");
  const [isMaking, setMaking] = useState(false);
  const [ended, setEnded] = useState<Token | null>(null);
  const shown = shownOf(tokens.data ?? [], words === "all", now);
  const tools = (
    <div className={styles.head}>
      <label className={styles.tick}>
        <input type="checkbox" checked={words === "all"} onChange={(event) => setWords(event.target.checked ? "all" : "")} />
        <span>Include expired tokens</span>
      </label>
      {isAdmin ? (
        <Button data-testid="token-add" onClick={() => setMaking(true)}>
          Create a token
        </Button>
      ) : null}
    </div>
  );
  return (
    <Panel title={isAdmin ? "Tokens" : "Your tokens"} tools={tools}>
      {tokens.error ? <Trouble {...tokens.error.problem} /> : null}
      {tokens.isPending ? <Skeleton height={80} /> : null}
      {shown.length ? (
        <div role="table" aria-label="Tokens" style={COLUMNS}>
          <ColumnHeads heads={HEADS} />
          {shown.map((token) => (
            <TokenLine key={token.id} token={token} state={stateOf(token, now)} isThis={token.id === me.token} onRevoke={() => setEnded(token)} />
          ))}
        </div>
      ) : null}
      {isMaking ? <TokenDialog me={me} onClose={() => setMaking(false)} /> : null}
      {ended ? <RevokeDialog token={ended} isAdmin={isAdmin} isThis={ended.id === me.token} onClose={() => setEnded(null)} /> : null}
    </Panel>
  );
}

interface Props {
  token: Token;
  state: TokenState;
  /** The one by which this page is in. */
  isThis: boolean;
  onRevoke: () => void;
}

/** One token, without its secret. */
function TokenLine({ token, state, isThis, onRevoke }: Props) {
  const until = token.expires_at ? `until ${new Date(token.expires_at).toLocaleString()}` : "until it is revoked";
  return (
    <div role="row" className={styles.line} data-testid="token" data-token={token.id} data-state={state}>
      <code role="cell">{token.id}</code>
      <b role="cell">{token.user}</b>
      <span role="cell">
        {token.label || NOTHING}
        {isThis ? <span className={styles.soft}> (this page)</span> : null}
      </span>
      <span role="cell">{token.kind === "cookie" ? "browser" : "token"}</span>
      <span role="cell" title={until}>
        {state}
      </span>
      <span role="cell">
        <Ago time={token.created_at} />
      </span>
      <span role="cell" className={styles.tools}>
        {state === "good" ? (
          <Button aria-label={`Revoke ${token.id} of ${token.user}`} data-testid="token-revoke" onClick={onRevoke}>
            Revoke
          </Button>
        ) : null}
      </span>
    </div>
  );
}

interface RevokeDialogProps {
  token: Token;
  isAdmin: boolean;
  isThis: boolean;
  onClose: () => void;
}

/** End a token, for good. */
function RevokeDialog({ token, isAdmin, isThis, onClose }: RevokeDialogProps) {
  const revoke = useRevoke(isAdmin);
  const name = token.label || (token.kind === "cookie" ? "a browser" : token.id);
  return (
    <Dialog title={`Revoke ${name} of ${token.user}`} onClose={onClose}>
      <Question
        about="This cannot be undone; another token can be created."
        done="Revoke"
        isGrave
        isReady
        isBusy={revoke.isPending}
        problem={revoke.error?.problem ?? null}
        onConfirm={() => revoke.mutate(token.id, { onSuccess: onClose })}
        onClose={onClose}
      >
        <Outlook
          lines={["Requests with it are refused at once; open pages end within seconds."]}
          warnings={isThis ? ["This page uses it: you will have to sign in again."] : []}
          command={isAdmin ? `loom tokens revoke ${token.id}` : undefined}
          hint=""
        />
      </Question>
    </Dialog>
  );
}
