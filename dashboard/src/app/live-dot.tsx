import { useQueryClient } from "@tanstack/react-query";
import { useEffect } from "react";

import { type Health, healthOf } from "../api/health";
import type { Link } from "../api/link";
import { useLink } from "../api/use-live";
import { ME } from "../api/use-people";
import { age } from "../ui/text/format";
import { usePassed } from "../ui/text/time";
import styles from "./live-dot.module.css";

/** Whether what one sees is what is: live, some seconds behind, or disconnected. */
export function LiveDot() {
  const link = useLink();
  const health = healthOf(link, usePassed());
  useWhoAgain(link);
  if (link.phase === "idle") return null; // nothing on this page is live
  return (
    <span className={styles.dot} data-testid="live-dot" data-state={health.state} title={health.why} role="status">
      <i aria-hidden="true" />
      <span>{inWords(health)}</span>
    </span>
  );
}

function inWords({ state, seconds }: Health): string {
  if (state === "live") return "Live";
  if (state === "behind") return `${age(Math.max(1, seconds))} behind`;
  return seconds > 0 ? "Disconnected" : "Connecting";
}

/** A refused socket has no reason: request the user's identity, which shows how to sign in. */
function useWhoAgain({ phase, tries }: Link): void {
  const queries = useQueryClient();
  useEffect(() => {
    const isKnown = () => queries.getQueryState(ME)?.status === "success";
    const isAsked = phase === "waiting" ? tries >= 5 && tries % 4 === 1 : phase === "open" && !isKnown();
    if (isAsked) void queries.invalidateQueries({ queryKey: ME });
    if (phase === "revoked") {
      void queries.refetchQueries({ queryKey: ME }).then(() => {
        if (isKnown()) location.reload(); // still signed in, with fewer rights
      });
    }
  }, [phase, tries, queries]);
}
