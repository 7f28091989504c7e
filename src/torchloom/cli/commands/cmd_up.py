"""`loom up`: start the plane of this user, or show its status."""

from typing import Any

import click

from torchloom.cli.command import LoomCommand, examples
from torchloom.cli.output import age, echo, echo_json, say, table
from torchloom.errors import UserError

_PARTS = ("nats", "weaver")
_REGISTRATION, _POLL = 5.0, 0.02  # seconds for the node agent to register, and between two checks


class OperatorsNotTrusted(UserError):
    """Other users could run programs as this user, who has not allowed it."""

    code = "operators_not_trusted"

    def __init__(self, host: str) -> None:
        super().__init__(
            "jobs of operators run as you and can read all your files, including the plane's keys "
            "and admin.token; give that role only to people you would give your account to, and "
            f"use `loom up --host {host} --trust-operators`"
        )


@click.command(
    "up",
    cls=LoomCommand,
    epilog=examples("loom up", "loom up --status", "loom up --host 10.0.0.5 --trust-operators"),
)
@click.option("--host", metavar="ADDR", help="Serve other hosts at this address, with TLS.")
@click.option(
    "--trust-operators", is_flag=True, help="With --host: accept that operators' jobs run as you."
)
@click.option("--only", type=click.Choice(_PARTS), help="Start only this part.")
@click.option("--status", is_flag=True, help="Show the status; exit with 1 if no plane is running.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(
    host: str | None, trust_operators: bool, only: str | None, status: bool, as_json: bool
) -> None:
    """Start the plane of this user: NATS, weaver, node agent and HTTP server.

    The plane runs in the background until `loom down`. A plane that a job has
    started is kept from now on. The command returns once this node accepts jobs.
    """
    if status and (host or only):
        raise UserError("--status cannot be combined with --host or --only")
    if host and only is None and not trust_operators:
        raise OperatorsNotTrusted(host)
    found = _status() if status else _up(host, only)
    if as_json:
        from torchloom.client.plane import shown_status

        echo_json(shown_status(found))
    else:
        _show(found)


def _status() -> dict[str, Any]:
    from torchloom.client.errors import NoPlane
    from torchloom.client.plane import find

    found = find()
    if found is None:
        raise NoPlane
    return found


def _up(host: str | None, only: str | None) -> dict[str, Any]:
    from torchloom.client.plane import find, find_or_start

    before = find()
    if before is None:
        say(f"starting {only or 'the plane: NATS, weaver, node agent, server'}")
    found = find_or_start(pinned=True, only=only, host=host) or _status()
    if before is not None:
        more = "" if before["pinned"] else "; it now stays until `loom down`"
        say(f"the plane was already running{more}")
    if found["note"]:
        say(found["note"])
    if only is None:
        _await_agent(found)
        _announce_dashboard()
    return found


def _await_agent(found: dict[str, Any]) -> None:
    """Wait until this node's agent has registered with the weaver, so that it accepts jobs."""
    import time

    deadline = time.monotonic() + _REGISTRATION
    while not _has_node(found["host"]):
        if time.monotonic() > deadline:
            log = found["parts"].get("agent", {}).get("log", "its log")
            late = f"the node agent has not registered after {_REGISTRATION:.0f} s"
            say(f"{late}: until it has, jobs for this node are refused; see {log}")
            return
        time.sleep(_POLL)


def _has_node(host: str) -> bool:
    from torchloom.client import plane
    from torchloom.errors import LoomError

    try:
        nodes = plane.ask("cluster", _REGISTRATION)["nodes"]
    except (LoomError, OSError):  # the weaver is being started again
        return False
    return any((one["host"], one["state"]) == (host, "up") for one in nodes)


def _announce_dashboard() -> None:
    from torchloom import settings
    from torchloom.server.bundle import missing

    say(missing(settings.environment()) or "`loom open` opens the dashboard and signs you in")


def _show(found: dict[str, Any]) -> None:
    stays = "until `loom down`" if found["pinned"] else "until one hour without jobs"
    echo(f"plane on {found['host']}, pid {found['pid']}, up {age(found['started_at'])}, {stays}")
    echo(f"url    {found['url']}")
    echo(f"token  {found['token_file']}")
    echo(f"nats   {found['nats']}")
    rows = [
        (name, str(part["pid"] or "-"), _ends(part), part["log"])
        for name, part in found["parts"].items()
    ]
    echo(table(("PART", "PID", "ENDED", "LOG"), rows))


def _ends(part: dict[str, Any]) -> str:
    return f"{part['ends']} times, {part['how']}" if part["ends"] else "never"
