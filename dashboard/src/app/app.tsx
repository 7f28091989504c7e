import { Component, type ReactNode } from "react";

import { useMe } from "../api/use-people";
import type { Problem } from "../api/wire";
import { ClusterPage } from "../cluster/cluster-page";
import { ComparePage } from "../experiments/compare/compare-page";
import { ExperimentsPage } from "../experiments/experiments-page";
import { JobsPage } from "../jobs/jobs-page";
import { SettingsPage } from "../settings/settings-page";
import { SubmitPage } from "../submit/submit-page";
import { Button } from "../ui/button";
import { Empty } from "../ui/panel";
import { Link, usePath, useSearch } from "../ui/router";
import { CopyLine } from "../ui/text/copy";
import styles from "./app.module.css";
import { JobPage } from "./job-page";
import mark from "./mark.svg";
import { type Route, routeOf } from "./routes";
import { sameOf } from "./same";
import { Shell } from "./shell";

/** The page for an address; without a valid session, how to sign in. */
export function App() {
  const me = useMe();
  const path = usePath();
  const route = routeOf(path);
  if (me.error?.problem.status === 401) return <LoginHelp problem={me.error.problem} />;
  return (
    <Shell me={me.data} problem={me.data ? undefined : me.error?.problem}>
      <Boundary key={path}>
        {route.page === "jobs" ? (
          <JobsPage />
        ) : route.page === "job" ? (
          <JobPage key={route.job} job={route.job} tab={route.tab} />
        ) : route.page === "experiments" ? (
          <ExperimentsPage />
        ) : route.page === "compare" ? (
          <ComparePage />
        ) : route.page === "submit" ? (
          <SubmitPage role={me.data?.role} />
        ) : route.page === "cluster" ? (
          <ClusterPage />
        ) : route.page === "settings" ? (
          <SettingsPage />
        ) : (
          <NotFound />
        )}
        <SameLine route={route} />
      </Boundary>
    </Shell>
  );
}

interface Props {
  children: ReactNode;
}

/** A bug in one page does not break the whole window: it is shown, and other pages still work. */
class Boundary extends Component<Props, { error: Error | null }> {
  override state = { error: null as Error | null };

  static getDerivedStateFromError(error: Error) {
    return { error };
  }

  override render() {
    if (!this.state.error) return this.props.children;
    return (
      <Empty title="This page has a bug">
        <p>{this.state.error.message}</p>
        <Button onClick={() => location.reload()}>Reload the page</Button>
      </Empty>
    );
  }
}

/** For a browser without a valid session: how to sign in. */
function LoginHelp({ problem }: { problem: Problem }) {
  const isAgain = problem.code === "sign_in_again";
  return (
    <main className={styles.page} data-testid="login-help">
      <img src={mark} width="44" height="44" alt="" />
      <h1>{isAgain ? "Sign in again" : "Sign in"}</h1>
      {isAgain ? <p>The session of this browser has ended, or was started by an older version of torchLoom.</p> : null}
      <p>
        Sign in with a one-time link. A link works once, within a day; this browser then stays signed in for a month.
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

/** An address that means nothing. */
function NotFound() {
  return (
    <Empty title="Page not found">
      <p>
        <Link href="/jobs">All jobs</Link>
      </p>
    </Empty>
  );
}

/** What to type in a terminal to see the same. */
function SameLine({ route }: { route: Route }) {
  const command = sameOf(route, new URLSearchParams(useSearch()));
  if (!command) return null;
  return (
    <aside className={styles.same} aria-label="The same in a terminal" data-testid="same">
      <span>The same in a terminal</span>
      <CopyLine text={command} label="Copy the loom command" />
    </aside>
  );
}
