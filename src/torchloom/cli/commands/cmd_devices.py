"""`loom devices`: the map of devices and the ranks on them; say what happens to one."""

from typing import Any

import click

from torchloom.cli.command import LoomCommand
from torchloom.cli.output import echo, echo_json, table


@click.group(
    "devices", invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option("--json", "as_json", is_flag=True, help="Print a list.")
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """Show every device of every node, its state and the ranks that use it."""
    if context.invoked_subcommand is not None:
        return
    from torchloom.client import chosen

    found = chosen.ask("devices")
    if as_json:
        echo_json(found["devices"])
        return
    rows = [_row(device) for device in found["devices"]]
    echo(table(("DEVICE", "NODE", "STATE", "RANKS", "REASON"), rows))


def _row(device: dict[str, Any]) -> tuple[str, ...]:
    ranks = ", ".join(device["processes"]) or "-"
    return device["uuid"], device["node"], device["state"], ranks, device["reason"]


def _event(name: str, state: str, text: str) -> None:
    @command.command(name, cls=LoomCommand, help=text)
    @click.argument("device")
    @click.option("--reason", default="", metavar="WHY", help="Kept with the event.")
    @click.option("--json", "as_json", is_flag=True, help="Print the device.")
    def _(device: str, reason: str, as_json: bool) -> None:
        from torchloom.client import chosen

        new = name == "register"
        found = chosen.ask("device_event", device=device, state=state, reason=reason, new=new)
        if as_json:
            echo_json(found)
            return
        ranks = ", ".join(found["processes"]) or "no rank"
        echo(f"{found['uuid']} is {found['state']}; it has {ranks}")


_event("fail", "failed", "A device has failed: the ranks on it are acted on.")
_event("recover", "healthy", "A device is well again.")
_event("drain", "draining", "Leave a device: nothing new is put on it.")
_event("register", "healthy", "Make a device known, by its uuid.")
