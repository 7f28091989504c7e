import { Button } from "../ui/button";
import { CopyLine } from "../ui/copy-line";
import styles from "./login-help.module.css";
import mark from "./mark.svg";

/** For somebody whom the plane does not know: how to get in. */
export function LoginHelp() {
  return (
    <main className={styles.page} data-testid="login-help">
      <img src={mark} width="44" height="44" alt="" />
      <h1>Who are you?</h1>
      <p>
        This plane lets in people who have a link. A link is good once, for a day; behind it your browser stays
        known for a month.
      </p>
      <p>On the plane’s own machine, make one for yourself:</p>
      <CopyLine text="loom tokens link admin" label="Copy the command" />
      <p>Elsewhere, ask an admin of the plane for a link. Open it in this browser, then come back here.</p>
      <Button tone="main" onClick={() => location.reload()}>
        I have opened a link
      </Button>
    </main>
  );
}
