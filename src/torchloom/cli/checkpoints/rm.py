"""`loom checkpoint rm`: remove checkpoints, through the plane where there is one."""

import sys
from typing import Any

import click

from torchloom.cli.checkpoints.stores import Kept, job_and_steps, kept
from torchloom.cli.command import LoomCommand
from torchloom.cli.output import echo, echo_json
from torchloom.errors import LoomError, NotFound, UserError

_UNKNOWN = ("not_found", "not_committed")  # the plane keeps no account of it


@click.command("rm", cls=LoomCommand)
@click.argument("words", nargs=-1, metavar="JOB STEP...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="The newest one too: the job then goes on from older.")
@click.option("--reason", default="", metavar="WHY", help="Kept with the event.")
@click.option("--json", "as_json", is_flag=True, help="Print a list: each step and its state.")
def rm(words: tuple[str, ...], yes: bool, force: bool, reason: str, as_json: bool) -> None:
    """Remove the checkpoints of these STEPs of JOB.

    The newest committed one stays, since the job goes on from it, unless --force says otherwise.
    """
    from torchloom.client import chosen

    job, steps = job_and_steps(words)
    if not steps:
        raise UserError("name the job and the steps to remove; `loom checkpoint ls` lists them")
    steps = list(dict.fromkeys(steps))
    found = None if chosen.is_elsewhere() else kept(job, "rm")
    if found is not None:
        _check(found, steps, force)
    _agree(steps, force, yes)
    done: list[dict[str, Any]] = []
    for step in steps:
        done.append({"step": step, "state": _remove(found, job, step, force, reason)})
        if not as_json:
            echo(_in_words(**done[-1]))
    if as_json:
        echo_json(done)


def _in_words(step: int, state: str) -> str:
    if state == "removed":
        return f"checkpoint of step {step} removed"
    return f"checkpoint of step {step} will go as soon as somebody sees the store"


def _check(found: Kept, steps: list[int], force: bool) -> None:
    """Refuse before any is removed: a command that fails has changed nothing."""
    there = found.storage.committed()
    for step in steps:
        if step not in there:
            known = ", ".join(map(str, there[:10])) or "none"
            raise NotFound("checkpoint of step", str(step), (), f"{found.job} has: {known}")
    newest = found.storage.latest()
    if newest in steps and not force:
        raise UserError(
            f"step {newest} is the newest checkpoint of {found.job}, which a restart or a resume "
            "goes on from; --force removes it all the same"
        )


def _agree(steps: list[int], force: bool, yes: bool) -> None:
    if yes:
        return
    what = f"the checkpoint of step {steps[0]}" if len(steps) == 1 else f"{len(steps)} checkpoints"
    if not sys.stdin.isatty():
        raise UserError(f"this removes {what}; give --yes where no terminal can ask")
    more = ", perhaps the newest, from which the job would go on" if force else ""
    click.confirm(f"remove {what}{more}?", abort=True)


def _remove(found: Kept | None, job: str, step: int, force: bool, reason: str) -> str:
    """Remove one: whoever keeps account of it is asked; with nobody there, the store is."""
    from torchloom.client import chosen
    from torchloom.client.errors import NoPlane

    if found is None:
        with chosen.client() as other:
            name = chosen.meant(other, job)
            return str(other.remove_checkpoint(name, step, force, reason)["state"])
    asked = {"job": found.job, "step": step, "force": force, "reason": reason}
    try:
        return str(chosen.ask("checkpoint_remove", None, **asked)["state"])
    except LoomError as error:
        if not isinstance(error, NoPlane) and error.code not in _UNKNOWN:
            raise
        found.storage.remove(step)
        return "removed"
