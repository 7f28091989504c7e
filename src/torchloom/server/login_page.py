"""The pages of a browser's session: one begins it with a one-time link, one uses it.

A link's code stands after `#`, which no server log has. The login returns the session's second
secret, which the page keeps in the storage of its origin; a cookie goes to every port of the host.
"""

from starlette.responses import HTMLResponse

from torchloom.server.pages import STYLE, page
from torchloom.server.sessions import HEADER, STORED

_STORE = f"""
const memory = (use) => {{ try {{ return use(localStorage); }} catch {{ return null; }} }};
const kept = () => memory((it) => it.getItem("{STORED}")) || "";
const keep = (secret) => memory((it) => (it.setItem("{STORED}", secret), true));
const shown = () => (kept() ? {{"{HEADER}": kept()}} : {{}});
const say = (text) => document.querySelector("p").textContent = text;
const HOW = "Sign in with a one-time link: `loom open` makes one on the plane's own host, "
  + "elsewhere an admin does (loom tokens link USER).";
"""
_SCRIPT = """
const code = location.hash.slice(1), job = new URLSearchParams(location.search).get("job");
const enter = (found) => {
  if (!keep(found.session)) {
    say("This browser stores nothing for this page, and so cannot stay signed in. "
      + "Allow storage for this address, then open a new link.");
  } else {
    say(`Signed in as ${found.user} (${found.role}).`);
    leave();
  }
};
history.replaceState(null, "", location.pathname);
if (!code) say(HOW);
else fetch("/api/login", {
  method: "POST",
  headers: {"Content-Type": "application/json", ...shown()},
  body: JSON.stringify({code}),
}).then(async (answer) => {
  const found = await answer.json();
  if (answer.ok) enter(found);
  else say(found.detail);
}).catch(() => say("The server does not answer. The link may still be good: open it again."));
"""
_AGAIN = """
const show = async (answer) => {
  const text = await answer.text();
  if ((answer.headers.get("Content-Type") || "").startsWith("text/html")) {
    const found = new DOMParser().parseFromString(text, "text/html");
    document.title = found.title;
    document.body.replaceChildren(...found.body.childNodes);
  } else {
    const plain = document.createElement("pre");
    plain.textContent = text;
    document.body.replaceChildren(plain);
  }
};
if (!kept()) say(HOW);
else fetch(location.href, {headers: {Accept: "application/json, */*;q=0.5", ...shown()}}).then(
  async (answer) => answer.ok ? show(answer) : say(`${(await answer.json()).detail}. ${HOW}`)
).catch(() => say("The server does not answer. Load this page again."));
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
    return page("torchLoom", _STYLE, _BODY, _STORE + leave + _SCRIPT)


def session_page() -> HTMLResponse:
    """Return the page for an address that a browser was led to: it asks again with the secret.

    Following a link a browser sends the cookie alone. So does the server of another port.
    """
    body = "<h1>torchLoom</h1><p>Loading.</p>"
    return page("torchLoom", STYLE, body, _STORE + _AGAIN, 401)
