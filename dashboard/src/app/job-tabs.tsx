import { Link } from "../ui/link";
import styles from "./job-tabs.module.css";
import type { Tab } from "./routes";

const TABS: readonly [Tab, string][] = [
  ["overview", "Overview"],
  ["charts", "Charts"],
  ["knobs", "Knobs"],
  ["ranks", "Ranks"],
  ["logs", "Logs"],
  ["checkpoints", "Checkpoints"],
  ["events", "Events"],
  ["spec", "Spec"],
];

/** The views of one job. */
export function JobTabs({ job, tab }: { job: string; tab: Tab }) {
  const path = `/jobs/${encodeURIComponent(job)}`;
  return (
    <nav className={styles.tabs} aria-label="Views of the job">
      {TABS.map(([name, text]) => (
        <Link
          key={name}
          data-view={name}
          href={name === "overview" ? path : `${path}/${name}`}
          aria-current={name === tab ? "page" : undefined}
        >
          {text}
        </Link>
      ))}
    </nav>
  );
}
