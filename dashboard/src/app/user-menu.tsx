import type { FocusEvent } from "react";

import { ask } from "../api/http";
import { forgetSession } from "../api/session";
import type { Me } from "../api/wire";
import { Skeleton } from "../ui/panel";
import styles from "./user-menu.module.css";

const MAY: Record<string, string> = {
  viewer: "Viewers read.",
  operator: "Operators submit and control jobs.",
  admin: "Admins control jobs and manage users.",
};

/** Who one is, what one may, and the way out. */
export function UserMenu({ me }: { me: Me | undefined }) {
  if (!me) return <Skeleton width={90} height={18} />;
  return (
    <details className={styles.user} onBlur={left}>
      <summary>
        <span className={styles.name}>{me.user}</span>
        <span className={styles.role} data-testid="role">
          {me.role}
        </span>
      </summary>
      <div className={styles.menu} tabIndex={-1}>
        <p>
          {me.user} is {me.role}. {MAY[me.role]}
        </p>
        <button type="button" onClick={() => void leave()}>
          Sign out
        </button>
      </div>
    </details>
  );
}

/** A menu that one has left lies in the way. */
function left({ currentTarget, relatedTarget }: FocusEvent<HTMLDetailsElement>): void {
  if (!currentTarget.contains(relatedTarget)) currentTarget.open = false;
}

/** Sign out. Without its half of the session this browser is out, also when the server does not answer. */
async function leave(): Promise<void> {
  await ask("/api/logout", { method: "POST" }).catch(() => undefined);
  forgetSession();
  location.assign("/");
}
