"""`loom doctor`: is this machine fit to run things, and what did crashes leave."""

from collections.abc import Callable

import click

from torchloom.cli import checkup
from torchloom.cli.command import LoomCommand
from torchloom.cli.output import echo_json, paint


@click.command("doctor", cls=LoomCommand)
@click.option("--clean", is_flag=True, help="End and remove what crashed launches left.")
@click.option("--json", "as_json", is_flag=True, help="Print a list.")
def command(clean: bool, as_json: bool) -> int:
    """Check this machine; exit 1 when something is wrong."""
    looks: list[Callable[[], checkup.Finding]] = [
        checkup.python,
        checkup.torch,
        checkup.accelerators,
        checkup.state_folder,
        checkup.runtime_folder,
        checkup.room,
        lambda: checkup.leftovers(clean),
    ]
    findings = [look() for look in looks]
    if as_json:
        echo_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            mark = paint("ok ", "green") if finding.ok else paint("BAD", "red")
            click.echo(f"{mark}  {finding.name:<14}{finding.text}")
    return 0 if all(finding.ok for finding in findings) else 1
