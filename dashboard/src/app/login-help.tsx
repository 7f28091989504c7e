import type { Problem } from "../api/wire";
import { Button } from "../ui/button";
import { CopyLine } from "../ui/copy-line";
import styles from "./login-help.module.css";
import mark from "./mark.svg";

/** For somebody whom the plane does not know, or no longer: how to sign in. */
export function LoginHelp({ problem }: { problem: Problem }) {
  const isAgain = problem.code === "sign_in_again";
  return (
    <main className={styles.page} data-testid="login-help">
      <img src={mark} width="44" height="44" alt="" />
      <h1>{isAgain ? "Sign in again" : "Sign in"}</h1>
      {isAgain ? <p>The session of this browser has ended, or was begun before its cookie needed a second secret.</p> : null}
      <p>
        Sign in with a one-time link. A link is good once, for a day; after that this browser stays signed in for a
        month.
      </p>
      <p>On the plane’s own machine this opens a browser and signs you in:</p>
      <CopyLine text="loom open" label="Copy the command" />
      <p>Elsewhere, ask an admin of the plane for a link. Open it in this browser, then come back here.</p>
      <Button tone="main" onClick={() => location.reload()}>
        I have signed in
      </Button>
    </main>
  );
}
