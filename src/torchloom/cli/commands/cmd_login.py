"""`loom login`: choose a plane elsewhere, after a look at who answers there."""

import sys
from typing import Any

import click

from torchloom.cli.command import LoomCommand
from torchloom.cli.output import echo, echo_json, say
from torchloom.errors import UserError


@click.command("login", cls=LoomCommand)
@click.argument("url", required=False)
@click.option("--fingerprint", metavar="HEX", help="How the plane is known, as its admin says.")
@click.option("--forget", is_flag=True, help="Use the plane of this host again.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(url: str | None, fingerprint: str | None, forget: bool, as_json: bool) -> None:
    """Use the plane at URL, by a link or a token that is asked for, or read from stdin.

    Without URL, show which plane is in use.
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
    """Return the authority of a plane; on a terminal a person may compare it."""
    from torchloom.client import login

    try:
        return login.pinned(url, fingerprint or "")
    except login.Unpinned as unknown:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        say(f"{url} shows the fingerprint {unknown.fingerprint}")
        if not click.confirm("Is this what its admin has told you?", err=True):
            raise UserError("not known, and nothing was sent; ask its admin") from None
        return login.pinned(url, unknown.fingerprint)


def _fingerprint(authority: str) -> str:
    from torchloom.client.trust import fingerprint

    return fingerprint(authority)


def _secret() -> str:
    """Return the link or token; what is typed is not shown."""
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
        echo("the plane of this host" if forgotten else "no other plane was in use")
