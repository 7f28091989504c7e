"""`loom login`: use the plane of another host, after its certificate has been checked."""

import sys
from typing import Any

import click

from torchloom.cli.command import LoomCommand, examples
from torchloom.cli.output import echo, echo_json, say
from torchloom.errors import UserError


@click.command(
    "login",
    cls=LoomCommand,
    epilog=examples(
        "loom login https://10.0.0.5:8470 --fingerprint 3f1c9a",
        "loom login             # shows the plane in use",
        "loom login --forget",
    ),
)
@click.argument("url", required=False)
@click.option("--fingerprint", metavar="HEX", help="Fingerprint of the plane, from its admin.")
@click.option("--forget", is_flag=True, help="Log out; use the plane of this host again.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(url: str | None, fingerprint: str | None, forget: bool, as_json: bool) -> None:
    """Use the plane at URL. A link or a token is prompted for, or read from stdin.

    Without URL, show the plane in use.
    """
    if forget:
        _forget(as_json)
        return
    from torchloom.client import login

    if url is None:
        _show(login.current(), as_json)
        return
    place = login.argument(url)
    authority = _known(place, fingerprint)
    known = fingerprint or (_fingerprint(authority) if authority else "")
    entered = login.enter(place, _secret(), known, authority)
    login.remember(entered)
    _show(entered, as_json)


def _known(url: str, fingerprint: str | None) -> str:
    """Return the certificate authority of a plane; on a terminal the user may confirm it."""
    from torchloom.client import login

    try:
        return login.pinned(url, fingerprint or "")
    except login.Unpinned as unknown:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        say(f"{url} has the fingerprint {unknown.fingerprint}")
        if not click.confirm("Is this the fingerprint its admin gave you?", err=True):
            raise UserError("the plane is not trusted, nothing was sent; ask its admin") from None
        return login.pinned(url, unknown.fingerprint)


def _fingerprint(authority: str) -> str:
    from torchloom.client.trust import fingerprint

    return fingerprint(authority)


def _secret() -> str:
    """Return the link or token, read from stdin or prompted for without echo."""
    if not sys.stdin.isatty():
        return sys.stdin.readline(10_000).strip()
    found: str = click.prompt("Link or token", hide_input=True, err=True)
    return found


def _show(login: Any, as_json: bool) -> None:
    if login is None:
        shown = {"url": None, "user": None, "role": None, "fingerprint": None}
        if as_json:
            echo_json(shown)
        else:
            echo("the plane of this host")
        return
    with login.client() as client:
        me = client.me()
    shown = {"url": login.url, "user": me["user"], "role": me["role"]}
    if as_json:
        echo_json({**shown, "fingerprint": login.fingerprint or None})
    else:
        echo(f"{login.url} as {me['user']} ({me['role']})")


def _forget(as_json: bool) -> None:
    from torchloom.client import login

    forgotten = login.forget()
    if as_json:
        echo_json({"url": None, "user": None, "role": None, "fingerprint": None})
    else:
        echo("the plane of this host" if forgotten else "not logged in to another plane")
