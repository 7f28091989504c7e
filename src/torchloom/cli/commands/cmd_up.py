"""`loom up`: have a plane that stays, or see how the one here is."""

from typing import Any

import click

from torchloom.cli.command import LoomCommand
from torchloom.cli.output import age, echo, echo_json, say, table
from torchloom.errors import UserError

_PARTS = ("nats", "weaver")
_REGISTRATION, _LOOK = 5.0, 0.02  # seconds for the node agent to register, and between two looks


class OperatorsNotTrusted(UserError):
    """Others would be able to run programs as this user, who has not said that they may."""

    code = "operators_not_trusted"

    def __init__(self, host: str) -> None:
        super().__init__(
            "jobs of operators run as you and can read all that you can, the plane's keys and "
            "admin.token too; give that role only to people you would give your account to, and "
            f"write `loom up --host {host} --trust-operators`"
        )


@click.command("up", cls=LoomCommand)
@click.option("--host", metavar="ADDR", help="Serve other hosts at this address, with TLS.")
@click.option("--trust-operators", is_flag=True, help="With --host: their jobs run as you.")
@click.option("--only", type=click.Choice(_PARTS), help="Start this part alone.")
@click.option("--status", is_flag=True, help="Change nothing; exit 1 when no plane runs.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(
    host: str | None, trust_operators: bool, only: str | None, status: bool, as_json: bool
) -> None:
    """Start the plane of this user: NATS, weaver, node agent and HTTP server.

    It runs in the background until `loom down`. A plane that a job started is kept from leaving;
    one that is up already is left as it is. The command ends when this node can be given jobs.
    """
    if status and (host or only):
        raise UserError("--status only looks; leave out --host and --only, or --status")
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
        say("the plane was up" if before["pinned"] else "the plane was up, and stays from now on")
    if found["note"]:
        say(found["note"])
    if only is None:
        _await_agent(found)
        _tell_of_the_dashboard()
    return found


def _await_agent(found: dict[str, Any]) -> None:
    """Come back when this node can be given jobs: its agent has registered with the weaver."""
    import time

    deadline = time.monotonic() + _REGISTRATION
    while not _has_node(found["host"]):
        if time.monotonic() > deadline:
            log = found["parts"].get("agent", {}).get("log", "its log")
            late = f"the node agent has not registered after {_REGISTRATION:.0f} s"
            say(f"{late}: until it has, jobs for this node are refused; see {log}")
            return
        time.sleep(_LOOK)


def _has_node(host: str) -> bool:
    from torchloom.client import plane
    from torchloom.errors import LoomError

    try:
        nodes = plane.ask("cluster", _REGISTRATION)["nodes"]
    except (LoomError, OSError):  # the weaver is being started again
        return False
    return any((one["host"], one["state"]) == (host, "up") for one in nodes)


def _tell_of_the_dashboard() -> None:
    from torchloom import settings
    from torchloom.server.bundle import missing

    say(missing(settings.environment()) or "`loom open` opens the dashboard and signs you in")


def _show(found: dict[str, Any]) -> None:
    stays = "until `loom down`" if found["pinned"] else "until an hour without a job"
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
