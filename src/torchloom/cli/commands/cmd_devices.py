"""`loom devices`: list devices and the ranks on them; report a device failed or healthy."""

from typing import Any

import click

from torchloom.cli.command import LoomGroup, examples
from torchloom.cli.output import echo, echo_json, table


@click.group(
    "devices",
    cls=LoomGroup,
    invoke_without_command=True,
    epilog=examples("loom devices", 'loom devices fail GPU-5c3b0f7e --reason "ECC errors"'),
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List the devices of all nodes, their state and the ranks that use them."""
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


def _event(name: str, state: str, text: str, example: str) -> None:
    @command.command(name, help=text, epilog=examples(f"loom devices {name} {example}"))
    @click.argument("device")
    @click.option("--reason", default="", metavar="WHY", help="Recorded with the event.")
    @click.option("--json", "as_json", is_flag=True, help="Print the device as JSON.")
    def _(device: str, reason: str, as_json: bool) -> None:
        from torchloom.client import chosen

        new = name == "register"
        found = chosen.ask("device_event", device=device, state=state, reason=reason, new=new)
        if as_json:
            echo_json(found)
            return
        ranks = ", ".join(found["processes"]) or "no rank"
        echo(f"{found['uuid']} is {found['state']}; used by {ranks}")


_event(
    "fail",
    "failed",
    "Report a device as failed; its ranks are recovered.",
    'GPU-5c3b0f7e --reason "ECC errors"',
)
_event("recover", "healthy", "Report a device as healthy again.", "GPU-5c3b0f7e")
_event("drain", "draining", "Place no new ranks on a device.", "GPU-5c3b0f7e --reason maintenance")
_event("register", "healthy", "Register a device by its uuid.", "GPU-5c3b0f7e")
