"""`loom inspect`: show the audit log of a job, or the stacks of its ranks."""

from typing import Any

import click

from torchloom.cli.command import LoomCommand
from torchloom.cli.jobs.control import in_words
from torchloom.cli.output import echo, echo_json, table
from torchloom.errors import NotFound, UserError

VIEWS = ("audit", "stacks")
_PATIENCE = 30.0  # seconds; stacks are taken twice, on every node


@click.command("inspect", cls=LoomCommand)
@click.argument("job")
@click.argument("what", metavar="audit|stacks")
@click.option("--yaml", "as_yaml", is_flag=True, help="Print the input of `loom set --replay`.")
@click.option("--rank", type=int, help="Only the stacks of this rank.")
@click.option("--threads", is_flag=True, help="Stacks of all threads, by rank.")
@click.option("--json", "as_json", is_flag=True, help="Print a list; stacks are one object.")
def command(
    job: str, what: str, as_yaml: bool, rank: int | None, threads: bool, as_json: bool
) -> None:
    """Show the audit log or the stacks of JOB.

    audit: every command in order, with author, reason, step and outcome.

    stacks: what each rank is executing, sampled twice, and which rank blocks the others.
    """
    if what not in VIEWS:
        raise NotFound("view", what, VIEWS)
    if what == "stacks":
        if as_yaml:
            raise UserError("stacks are printed as text or with --json; --yaml is for audit")
        _stacks(job, rank, threads, as_json)
    else:
        if rank is not None or threads:
            raise UserError("--rank and --threads are for stacks")
        _audit(job, as_yaml, as_json)


def _audit(job: str, as_yaml: bool, as_json: bool) -> None:
    from torchloom.client import chosen

    commands = chosen.ask("audit", job=job)
    if as_json:
        echo_json(commands)
    elif as_yaml:
        import yaml

        echo(yaml.safe_dump(commands, sort_keys=False).rstrip())
    else:
        echo(table(("#", "AT", "BY", "STATE", "WHAT", "WHY"), map(_row, commands)))


def _stacks(job: str, rank: int | None, threads: bool, as_json: bool) -> None:
    from torchloom.cli.jobs import stacks
    from torchloom.client import chosen

    found = chosen.ask("stacks", _PATIENCE, job=job)
    if rank is not None:
        known = [
            number for role in found["roles"] for one in role["stacks"] for number in one["ranks"]
        ]
        if rank not in known:
            raise NotFound("rank", str(rank), map(str, sorted(known)))
        found = stacks.narrowed(found, rank)
    if as_json:
        echo_json(found)
    else:
        for line in stacks.stack_lines(found, threads):
            echo(stacks.fitted(line))


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    what = "; ".join(in_words(one))
    why = one["outcome"] or one["reason"]
    return str(one["number"]), one["asked_at"][:19], one["author"], one["state"], what, why
