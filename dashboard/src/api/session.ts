/** The second secret of this browser's session. The login page stores it; the storage of one origin is no other's.
 *
 * A cookie goes to every port of the host, so it opens nothing by itself: each request has this secret, too.
 */

const STORED = "loom-session"; // as the login page calls it
export const HEADER = "X-Loom-Session";

/** Return what a request shows beside the cookie; nothing where no user has signed in. */
export function sessionHeaders(): Record<string, string> {
  const secret = kept();
  return secret ? { [HEADER]: secret } : {};
}

/** Return the message with which a socket begins: it cannot have headers, and an address is no place for a secret. */
export function firstMessage(): string {
  return JSON.stringify({ op: "session", secret: kept() });
}

/** Forget the secret: this browser is signed out. */
export function forgetSession(): void {
  memory()?.removeItem(STORED);
}

function kept(): string {
  return memory()?.getItem(STORED) ?? "";
}

/** A browser may be set to store nothing. */
function memory(): Storage | null {
  try {
    return localStorage;
  } catch {
    return null;
  }
}
