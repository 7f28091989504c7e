import { useMe } from "../api/use-me";
import { ClusterPage } from "../cluster/cluster-page";
import { ComparePage } from "../experiments/compare-page";
import { ExperimentsPage } from "../experiments/experiments-page";
import { JobsPage } from "../jobs/jobs-page";
import { SettingsPage } from "../settings/settings-page";
import { SubmitPage } from "../submit/submit-page";
import { usePath } from "../ui/router";
import { Boundary } from "./boundary";
import { JobPage } from "./job-page";
import { LoginHelp } from "./login-help";
import { NotFound } from "./not-found";
import { routeOf } from "./routes";
import { SameLine } from "./same-line";
import { Shell } from "./shell";

/** The page for an address, for whoever is known; anybody else is told how to get in. */
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
