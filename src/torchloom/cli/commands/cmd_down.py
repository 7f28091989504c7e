"""`loom down`: stop the plane of this user and idle warm interpreters; jobs keep running."""

from typing import TYPE_CHECKING

import click

from torchloom.cli.command import LoomCommand, examples
from torchloom.cli.output import echo, echo_json

if TYPE_CHECKING:
    from torchloom.launch.keeper.zygote_client import InUse


@click.command("down", cls=LoomCommand, epilog=examples("loom down"))
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(as_json: bool) -> None:
    """Stop the plane of this user: NATS, weaver, node agent, and idle warm interpreters.

    Jobs keep running, and their reports are kept on disk for the next plane. A warm interpreter
    that a running job was started from is kept.
    """
    from torchloom.client.plane import find, leave
    from torchloom.launch.keeper.zygote_client import leave_idle

    found = find()
    was_up = leave()
    ended, in_use, starting = leave_idle()
    if as_json:
        stay = [{"pid": one.pid, "jobs": list(one.jobs)} for one in in_use]
        warm = {"zygotes_ended": ended, "zygotes_in_use": stay, "zygotes_starting": starting}
        echo_json({"was_up": was_up, "pid": found["pid"] if found else None, **warm})
        return
    echo("the plane is down" if was_up else "no plane was running")
    _show_interpreters(ended, in_use, starting)


def _show_interpreters(ended: int, in_use: "list[InUse]", starting: int) -> None:
    """Print which warm interpreters ended and which stay."""
    if ended:
        echo(f"{_counted(ended, 'idle warm interpreter')} ended")
    for one in in_use:
        jobs = f"{', '.join(one.jobs)} {'use' if len(one.jobs) > 1 else 'uses'} it"
        echo(f"the warm interpreter {one.pid} stays: {jobs}; `loom down` ends it afterwards")
    if starting:
        echo(
            f"{_counted(starting, 'warm interpreter')} still starting:"
            " run `loom down` again to end it"
        )


def _counted(many: int, what: str) -> str:
    return f"{many} {what}{'s' if many > 1 else ''}"
