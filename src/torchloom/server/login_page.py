"""The page behind a one-time link: it exchanges the code after `#`, which no server log sees."""

from starlette.responses import HTMLResponse

from torchloom.server.pages import page

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
  if (answer.ok) goOn();
}).catch(() => say("The server does not answer. The link may still be good: open it again."));
"""
_GO_ON = """
const goOn = () => %s;"""
_DASHBOARD, _NOWHERE = 'location.replace("/")', "undefined"
_STYLE = "body{font:16px system-ui;margin:20vh auto;max-width:36em;padding:0 1em}"
_BODY = "<h1>torchLoom</h1><p>Letting you in.</p>"


def login_page(has_dashboard: bool) -> HTMLResponse:
    """Return the page; whoever is let in goes on to the dashboard, where there is one."""
    going = _GO_ON % (_DASHBOARD if has_dashboard else _NOWHERE)
    return page("torchLoom", _STYLE, _BODY, going + _SCRIPT)
