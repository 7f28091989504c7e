import type { ReactNode } from "react";

import type { Me, Problem } from "../api/wire";
import { Keys } from "../keys/keys";
import { Icon } from "../ui/icon";
import { Trouble } from "../ui/panel";
import { Link, usePath } from "../ui/router";
import { LiveDot } from "./live-dot";
import mark from "./mark.svg";
import { OUTSIDE } from "./routes";
import styles from "./shell.module.css";
import { ThemeToggle } from "./theme-toggle";
import { UserMenu } from "./user-menu";

interface Props {
  me: Me | undefined;
  problem: Problem | undefined;
  children: ReactNode;
}

/** What is around every page: where one can go, how live it is, who one is. */
export function Shell({ me, problem, children }: Props) {
  const path = usePath();
  const onJobs = path === "/" || path.startsWith("/jobs");
  const maySubmit = me !== undefined && me.role !== "viewer";
  return (
    <>
      <a className={styles.skip} href="#main">
        Skip to the page
      </a>
      <header className={styles.bar}>
        <Link href="/" className={styles.brand} aria-label="torchLoom">
          <img src={mark} width="22" height="22" alt="" />
          <span>torchLoom</span>
        </Link>
        <nav className={styles.nav} aria-label="Pages">
          <Link href="/jobs" aria-current={onJobs ? "page" : undefined}>
            <Icon name="jobs" /> Jobs
          </Link>
          <Link href="/experiments" aria-current={path.startsWith("/experiments") ? "page" : undefined}>
            Experiments
          </Link>
          {maySubmit ? (
            <Link href="/submit" aria-current={path === "/submit" ? "page" : undefined}>
              Submit
            </Link>
          ) : null}
          <Link href="/cluster" aria-current={path === "/cluster" ? "page" : undefined}>
            <Icon name="node" /> Cluster
          </Link>
          <Link href="/settings" aria-current={path === "/settings" ? "page" : undefined}>
            <Icon name="knob" /> Settings
          </Link>
          {OUTSIDE.map(({ href, name }) => (
            <a key={href} href={href}>
              {name}
            </a>
          ))}
        </nav>
        <LiveDot />
        <Keys />
        <ThemeToggle />
        <UserMenu me={me} />
      </header>
      <main id="main" className={styles.main} tabIndex={-1}>
        {problem ? <Trouble detail={problem.detail} remedy={problem.remedy} /> : null}
        {children}
      </main>
    </>
  );
}
