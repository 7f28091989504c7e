import type { Token } from "../api/use-people";
import { Ago } from "../ui/ago";
import { Button } from "../ui/button";
import { NOTHING } from "../ui/format";
import styles from "./lines.module.css";
import type { TokenState } from "./people";

interface Props {
  token: Token;
  state: TokenState;
  /** The one by which this page is in. */
  isThis: boolean;
  onRevoke: () => void;
}

/** One token, without its secret. */
export function TokenLine({ token, state, isThis, onRevoke }: Props) {
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
