"""The page behind a one-time link: it exchanges the code after `#`, which no server log sees."""

from starlette.responses import HTMLResponse

from torchloom.server.pages import page

_SCRIPT = """
const code = location.hash.slice(1), job = new URLSearchParams(location.search).get("job");
const say = (text) => document.querySelector("p").textContent = text;
history.replaceState(null, "", location.pathname);
if (!code) say("Sign in with a one-time link: `loom open` makes one on the plane's own host, "
  + "elsewhere an admin does (loom tokens link USER).");
else fetch("/api/login", {
  method: "POST",
  headers: {"Content-Type": "application/json"},
  body: JSON.stringify({code}),
}).then(async (answer) => {
  const found = await answer.json();
  say(answer.ok ? `Signed in as ${found.user} (${found.role}).` : found.detail);
  if (answer.ok) leave();
}).catch(() => say("The server does not answer. The link may still be good: open it again."));
"""
_LEAVE = """
const leave = () => %s;"""
_DASHBOARD = 'location.replace(job ? `/jobs/${encodeURIComponent(job)}` : "/")'
_NOWHERE = "undefined"
_STYLE = "body{font:16px system-ui;margin:20vh auto;max-width:36em;padding:0 1em}"
_BODY = "<h1>torchLoom</h1><p>Signing you in.</p>"


def login_page(has_dashboard: bool) -> HTMLResponse:
    """Return the page; once signed in, a browser is led to the dashboard, where there is one.

    A link may name a job (`/login?job=ID#CODE`): then it is led to the job's page.
    """
    leave = _LEAVE % (_DASHBOARD if has_dashboard else _NOWHERE)
    return page("torchLoom", _STYLE, _BODY, leave + _SCRIPT)
