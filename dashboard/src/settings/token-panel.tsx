import { useState, type CSSProperties } from "react";

import { useTokens, type Token } from "../api/use-people";
import type { Me } from "../api/wire";
import { Button } from "../ui/button";
import { ColumnHeads } from "../ui/column-heads";
import { Panel } from "../ui/panel";
import { useWord } from "../ui/router";
import { Skeleton } from "../ui/skeleton";
import { Trouble } from "../ui/trouble";
import { useNow } from "../ui/use-now";
import styles from "./lines.module.css";
import { shownOf, stateOf } from "./people";
import { RevokeDialog } from "./revoke-dialog";
import { TokenDialog } from "./token-dialog";
import { TokenLine } from "./token-line";

const COLUMNS = { "--columns": "110px minmax(90px, 1fr) minmax(110px, 2fr) 80px 80px 80px minmax(100px, 0.6fr)" } as CSSProperties;
const HEADS = ["Token", "User", "Label", "Kind", "State", "Made", ""];

/** By what people are known: everybody's for an admin, else one's own. */
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
        <span>Those that have ended, too</span>
      </label>
      {isAdmin ? (
        <Button data-testid="token-add" onClick={() => setMaking(true)}>
          Make a token
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
