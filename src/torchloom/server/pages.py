"""HTML pages of the server itself: they load nothing from elsewhere and cannot be framed."""

import base64
import hashlib

from starlette.responses import HTMLResponse

STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui;margin:2em auto;max-width:60em;padding:0 1em}
h2{margin:2em 0 .3em;font-size:1.1em}
code,b{font-family:ui-monospace,monospace;font-weight:600}
summary{cursor:pointer;padding:.25em 0}
summary span{opacity:.75}
table{border-collapse:collapse;margin:.3em 0 .8em 1.2em}
td{padding:.1em 1em .1em 0;vertical-align:top}
"""


def page(title: str, style: str, body: str, script: str = "", status: int = 200) -> HTMLResponse:
    """Return a page; its content policy allows only its own style and script."""
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
    return HTMLResponse(text, status, headers)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
