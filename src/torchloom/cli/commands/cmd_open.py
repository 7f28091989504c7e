"""`loom open`: open the dashboard in a browser, signed in, without a secret on a command line."""

import html
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import click

from torchloom import settings
from torchloom.cli.command import LoomCommand, examples
from torchloom.cli.output import echo, echo_json, say
from torchloom.errors import Failure, LoomError

_PATIENCE = 30.0  # seconds for a browser to use the link
_POLL = 0.1
_SSH = ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")
_DISPLAYS = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
_REDIRECT = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>torchLoom</title>
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0;url={link}">
<p><a href="{link}">Open the dashboard</a></p></html>
"""


@dataclass(frozen=True, slots=True)
class SignIn:
    """A link to the dashboard; `sessions` returns the ids of the user's cookies."""

    user: str
    url: str
    link: str
    sessions: Callable[[], set[str]]

    @property
    def is_secret(self) -> bool:
        return self.link != self.url


@click.command(
    "open",
    cls=LoomCommand,
    epilog=examples(
        "loom open", "loom open gpt", "loom open --print    # the link, to open on another machine"
    ),
)
@click.argument("job", required=False, default="")
@click.option("--print", "prints", is_flag=True, help="Print the one-time link instead.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead.")
def command(job: str, prints: bool, as_json: bool) -> int:
    """Open the dashboard, or the page of JOB, in a browser and sign in.

    Over ssh or without a display, prints a link instead. The link works once.
    """
    from torchloom.client.chosen import is_elsewhere

    entry = _elsewhere(job) if is_elsewhere() else _here(job)
    if as_json:
        echo_json({"user": entry.user, "url": entry.url, "link": entry.link})
        return 0
    if prints or not has_browser(settings.environment(), sys.platform):
        _print(entry)
        return 0
    return _open(entry)


def has_browser(env: Mapping[str, str], platform: str) -> bool:
    """Tell whether the user can see a browser that is opened on this host."""
    if any(env.get(name) for name in _SSH):
        return False
    return platform == "darwin" or any(env.get(name) for name in _DISPLAYS)


def _here(job: str) -> SignIn:
    """Return a link for this user to the plane of this host, which is started if necessary."""
    from torchloom.client import plane
    from torchloom.server.bundle import missing

    if not (plane.find() or {}).get("url", "").startswith("http"):
        say("starting the plane's server")
    url = str((plane.find_or_start(served=True) or {}).get("url", ""))
    if not url.startswith("http"):
        raise Failure("the plane's server does not respond; `loom up --status` shows its log")
    if how := missing(settings.environment()):
        say(how)
    user = _known_user()
    name = _job_id(job) if job else ""
    code = plane.ask("link_add", user=user, author=settings.user_name())["code"]
    return SignIn(
        user,
        _page(url, name),
        _link(url, code, name),
        lambda: _cookies(plane.ask("tokens", user=user)),
    )


def _known_user() -> str:
    """Return this user's name on the plane; an unknown user is created as an admin.

    Only this user can open the plane's socket, so this grants no new rights.
    """
    from torchloom.client import plane

    me = settings.user_name()
    if me in {one["name"] for one in plane.ask("users")}:
        return me
    try:
        plane.ask("user_put", user=me, role="admin", author=me)
    except LoomError as error:
        if error.code != "bad_name":
            raise
        return "admin"  # the plane's own user: the account's name is not valid there
    return me


def _job_id(job: str) -> str:
    """Return the id of a job; a job that has just started may only have a run folder."""
    from torchloom.client import plane
    from torchloom.launch.records import catalog

    try:
        return str(plane.ask("job", job=job)["id"])
    except LoomError:
        record = catalog.record(job)
        if record is None:
            raise
        return record.id


def _elsewhere(job: str) -> SignIn:
    """Return a link to the plane logged in to; only an admin can create a one-time link."""
    from torchloom.client import chosen

    client = chosen.client()
    me = client.me()
    name = str(client.job(job)["id"]) if job else ""
    page = _page(client.url, name)
    if me["role"] != "admin":
        say(f"{me['user']} is {me['role']} there, and only an admin can make a one-time link")
        return SignIn(me["user"], page, page, set)
    link = _link(client.url, client.link(me["user"])["code"], name)
    return SignIn(me["user"], page, link, lambda: _cookies(client.my_tokens()))


def _page(url: str, job: str) -> str:
    return f"{url}/jobs/{quote(job, safe='')}" if job else f"{url}/"


def _link(url: str, code: str, job: str) -> str:
    query = f"?job={quote(job, safe='')}" if job else ""
    return f"{url}/login{query}#{code}"


def _cookies(tokens: list[dict[str, str]]) -> set[str]:
    return {one["id"] for one in tokens if one["kind"] == "cookie"}


def _print(entry: SignIn) -> None:
    if entry.is_secret:
        say(f"one-time link for {entry.user}")
    place = urlsplit(entry.url)
    if place.hostname in settings.LOOPBACK_NAMES and _is_ssh():
        port, host = place.port, os.uname().nodename
        say(f"first, on your own machine: ssh -L {port}:{place.hostname}:{port} {host}")
    echo(entry.link)


def _is_ssh() -> bool:
    env = settings.environment()
    return any(env.get(name) for name in _SSH)


def _open(entry: SignIn) -> int:
    """Open the link in a browser through a private file, which is removed afterwards."""
    import webbrowser

    echo(entry.url)
    if not entry.is_secret:
        webbrowser.open(entry.url)
        return 0
    before = entry.sessions()
    path = _redirect(entry.link)
    try:
        browser = threading.Thread(target=webbrowser.open, args=[path.as_uri()], daemon=True)
        browser.start()  # some browsers return only when their window is closed
        is_in = _until_used(lambda: bool(entry.sessions() - before))
    finally:
        path.unlink(missing_ok=True)
    if not is_in:
        say(
            f"no browser has used the link within {_PATIENCE:.0f} s; "
            "`loom open --print` prints one to open by hand"
        )
    return 0 if is_in else 1


def _redirect(link: str) -> Path:
    """Write a page that redirects to the link, readable only by this user; return its path."""
    from torchloom.client import plane

    descriptor, name = tempfile.mkstemp(".html", "open-", plane.made_folder())  # 0600
    with open(descriptor, "w") as file:
        file.write(_REDIRECT.format(link=html.escape(link)))
    return Path(name)


def _until_used(is_used: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if is_used():
            return True
        time.sleep(_POLL)
    return False
