"""The page behind a one-time link: it exchanges the code after `#`, which no server log sees."""

import base64
import hashlib

from starlette.responses import HTMLResponse

_SCRIPT = """
const code = location.hash.slice(1), say = (text) => document.querySelector("p").textContent = text;
history.replaceState(null, "", location.pathname);
if (!code) say("This page needs a link: ask an admin for one (loom tokens link USER).");
else fetch("/api/login", {
  method: "POST",
  headers: {"Content-Type": "application/json"},
  body: JSON.stringify({code}),
}).then(async (answer) => {
  const found = await answer.json();
  say(answer.ok ? `You are in as ${found.user} (${found.role}).` : found.detail);
}).catch(() => say("The server does not answer. The link may still be good: open it again."));
"""
_STYLE = "body{font:16px system-ui;margin:20vh auto;max-width:36em;padding:0 1em}"
_PAGE = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>torchLoom</title>
<meta name="viewport" content="width=device-width">
<style>{_STYLE}</style><h1>torchLoom</h1><p>Letting you in.</p>
<script>{_SCRIPT}</script></html>
"""


def page() -> HTMLResponse:
    """Return the page; nothing but its own script runs in it, and nobody can frame it."""
    rules = (
        "default-src 'none'",
        f"script-src {_digest(_SCRIPT)}",
        f"style-src {_digest(_STYLE)}",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
    headers = {
        "Content-Security-Policy": "; ".join(rules),
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return HTMLResponse(_PAGE, headers=headers)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
