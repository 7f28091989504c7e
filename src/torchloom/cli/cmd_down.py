"""`loom down`: end the plane of this user; training goes on."""

import click

from torchloom.cli.command import LoomCommand
from torchloom.cli.output import echo, echo_json


@click.command("down", cls=LoomCommand)
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(as_json: bool) -> None:
    """End the plane of this user: NATS, weaver and node agent.

    Jobs run on; what they report waits on disk for the next plane.
    """
    from torchloom.client.plane import find, leave

    found = find()
    was_up = leave()
    if as_json:
        echo_json({"was_up": was_up, "pid": found["pid"] if found else None})
    else:
        echo("the plane is down" if was_up else "no plane was up")
