"""`loom tokens`: manage users, tokens and one-time links."""

from typing import Any

import click

from torchloom import settings
from torchloom.cli.command import LoomCommand, LoomGroup, examples
from torchloom.cli.output import echo, echo_json, say, table

_ROLES = ("viewer", "operator", "admin")
_DAY = 86_400
_role = click.option(
    "--role", type=click.Choice(_ROLES), help="Role; a user that does not exist is created."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(
    "tokens",
    cls=LoomGroup,
    invoke_without_command=True,
    epilog=examples(
        "loom tokens",
        "loom tokens link alice --role operator",
        "loom tokens add ci --label nightly --days 30",
    ),
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List the valid tokens; manage users, tokens and one-time links.

    A viewer can read, an operator can submit and control jobs, an admin can manage users.
    """
    if context.invoked_subcommand is None:
        _show("", False, as_json)


@command.command(
    "ls", cls=LoomCommand, epilog=examples("loom tokens ls alice", "loom tokens ls --all")
)
@click.argument("user", default="")
@click.option("--all", "all_of_them", is_flag=True, help="Include revoked and expired tokens.")
@_json
def _ls(user: str, all_of_them: bool, as_json: bool) -> None:
    """List tokens, of one user or of all."""
    _show(user, all_of_them, as_json)


@command.command("users", cls=LoomCommand, epilog=examples("loom tokens users"))
@_json
def _users(as_json: bool) -> None:
    """List users and their roles."""
    from torchloom.client import plane

    users = plane.ask("users")
    if as_json:
        echo_json(users)
        return
    rows = [
        (one["name"], one["role"], one["run_as"] or "-", "disabled" if one["disabled"] else "-")
        for one in users
    ]
    echo(table(("USER", "ROLE", "RUN AS", "STATE"), rows))


@command.command(
    "user",
    cls=LoomCommand,
    epilog=examples("loom tokens user alice --role operator", "loom tokens user alice --disable"),
)
@click.argument("user")
@_role
@click.option(
    "--disable/--enable", "disabled", default=None, help="Refuse access, or allow it again."
)
@click.option("--run-as", metavar="ACCOUNT", help="Unix account of the user's jobs; '' for none.")
@_json
def _user(
    user: str, role: str | None, disabled: bool | None, run_as: str | None, as_json: bool
) -> None:
    """Create or change a user: role, access, unix account.

    On a plane that runs as root, the jobs of the user run as that account.
    """
    found = _put(user, role, disabled, run_as)
    if as_json:
        echo_json(found)
        return
    account = f", jobs run as {found['run_as']}" if found["run_as"] else ""
    echo(f"{found['name']} is {found['role']}{account}{', disabled' if found['disabled'] else ''}")


@command.command(
    "add",
    cls=LoomCommand,
    epilog=examples("loom tokens add ci --role operator --label nightly --days 30"),
)
@click.argument("user")
@_role
@click.option("--label", default="", metavar="TEXT", help="Purpose of the token.")
@click.option(
    "--days",
    metavar="N",
    type=click.FloatRange(0.0001, 3650),
    help="Lifetime in days; default: unlimited.",
)
@_json
def _add(user: str, role: str | None, label: str, days: float | None, as_json: bool) -> None:
    """Create a token for a user. It is printed once and not stored."""
    from torchloom.client import plane

    if role is not None:
        _put(user, role)
    seconds = None if days is None else days * _DAY
    made = plane.ask("token_add", user=user, label=label, seconds=seconds, author=_author())
    if as_json:
        echo_json(made)
        return
    say(f"token {made['id']} of {made['user']}; it is not shown again")
    echo(made["token"])


@command.command("revoke", cls=LoomCommand, epilog=examples("loom tokens revoke 3f9c2a81"))
@click.argument("token_id", metavar="ID")
@_json
def _revoke(token_id: str, as_json: bool) -> None:
    """Revoke a token.

    Requests with it are refused at once; its open connections are closed within seconds.
    """
    from torchloom.client import plane

    if token_id.startswith("loom_"):
        from torchloom.errors import UserError

        raise UserError("that is the token itself; give its id, which `loom tokens` shows")
    ended = plane.ask("token_revoke", id=token_id, author=_author())
    if as_json:
        echo_json(ended)
    else:
        echo(f"token {ended['id']} of {ended['user']} is revoked")


@command.command("link", cls=LoomCommand, epilog=examples("loom tokens link alice --role operator"))
@click.argument("user")
@_role
@_json
def _link(user: str, role: str | None, as_json: bool) -> None:
    """Create a link that signs a user in once.

    The link is valid for 24 hours. A user that does not exist is created, as a viewer unless --role
    is given.
    """
    from torchloom.client import plane

    made = plane.ask("link_add", user=user, role=role or "", author=_author())
    made = {**made, **_way_in()}
    if as_json:
        echo_json({**made, "url": made["url"] and f"{made['url']}/login#{made['code']}"})
        return
    if made["is_new"]:
        more = "" if role else f"; `loom tokens user {user} --role operator` changes the role"
        say(f"created user {made['user']}, {made['role']}{more}")
    say(f"one-time link for {made['user']}, valid until {made['expires_at']}")
    if made["fingerprint"]:
        say(f"or: loom login {made['url']} --fingerprint {made['fingerprint']}")
    if not made["url"]:
        say("no server is running that accepts it; `loom up` starts one. This is only the code:")
    echo(f"{made['url']}/login#{made['code']}" if made["url"] else made["code"])


def _show(user: str, all_of_them: bool, as_json: bool) -> None:
    from torchloom.client import plane

    found = plane.ask("tokens", user=user)
    tokens = [one for one in found if all_of_them or _state(one) == "valid"]
    if as_json:
        echo_json(tokens)
        return
    rows = [
        (one["id"], one["user"], one["kind"], _state(one), _until(one), one["label"])
        for one in tokens
    ]
    echo(table(("ID", "USER", "KIND", "STATE", "UNTIL", "LABEL"), rows))


def _state(token: dict[str, Any]) -> str:
    from datetime import UTC, datetime

    if token["revoked_at"]:
        return "revoked"
    ends = token["expires_at"]
    return "expired" if ends and datetime.fromisoformat(ends) <= datetime.now(UTC) else "valid"


def _until(token: dict[str, Any]) -> str:
    ends = token["revoked_at"] or token["expires_at"]
    return str(ends)[:16].replace("T", " ") if ends else "-"


def _put(
    user: str, role: str | None, disabled: bool | None = None, run_as: str | None = None
) -> dict[str, Any]:
    from torchloom.client import plane

    facts: dict[str, Any] = {"user": user, "role": role, "disabled": disabled, "run_as": run_as}
    found: dict[str, Any] = plane.ask("user_put", author=_author(), **facts)
    return found


def _way_in() -> dict[str, str | None]:
    """Return the plane's URL and the fingerprint of its certificate authority."""
    from torchloom.client import plane
    from torchloom.client.trust import fingerprint

    url = str((plane.find() or {}).get("url", ""))
    if not url.startswith("http"):
        return {"url": None, "fingerprint": None}
    authority = settings.loom_home() / "plane" / "keys" / "authority" / "ca.pem"
    known = fingerprint(authority.read_text()) if url.startswith("https:") else None
    return {"url": url, "fingerprint": known}


def _author() -> str:
    return settings.user_name()
