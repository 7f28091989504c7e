"""`loom inspect`: look closer at a job, such as at who changed what and what came of it."""

from typing import Any

import click

from torchloom.cli.command import LoomCommand
from torchloom.cli.output import echo, echo_json, table
from torchloom.cli.steering import in_words
from torchloom.errors import NotFound

VIEWS = ("audit",)


@click.command("inspect", cls=LoomCommand)
@click.argument("job")
@click.argument("what", metavar="audit")
@click.option("--yaml", "as_yaml", is_flag=True, help="Print what `loom set --replay` takes.")
@click.option("--json", "as_json", is_flag=True, help="Print a list.")
def command(job: str, what: str, as_yaml: bool, as_json: bool) -> None:
    """Look closer at JOB.

    audit: every command, in order: who, why, what, at which step, with which outcome.
    """
    from torchloom.client import plane

    if what not in VIEWS:
        raise NotFound("view", what, VIEWS)
    commands = plane.ask("audit", job=job)
    if as_json:
        echo_json(commands)
    elif as_yaml:
        import yaml

        echo(yaml.safe_dump(commands, sort_keys=False).rstrip())
    else:
        echo(table(("#", "AT", "BY", "STATE", "WHAT", "WHY"), map(_row, commands)))


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    said = "; ".join(in_words(one))
    why = one["outcome"] or one["reason"]
    return str(one["number"]), one["asked_at"][:19], one["author"], one["state"], said, why
