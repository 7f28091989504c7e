"""Pages of the server's own: nothing is loaded from elsewhere, and nobody can frame them."""

import base64
import hashlib

from starlette.responses import HTMLResponse


def page(title: str, style: str, body: str, script: str = "") -> HTMLResponse:
    """Return a page; nothing but its own style and script counts in it."""
    code = f"<script>{script}</script>" if script else ""
    text = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width">
<style>{style}</style>
{body}
{code}</html>
"""
    rules = (
        "default-src 'none'",
        f"script-src {_digest(script)}" if script else "",
        f"style-src {_digest(style)}",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
    headers = {
        "Content-Security-Policy": "; ".join(filter(None, rules)),
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return HTMLResponse(text, headers=headers)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
