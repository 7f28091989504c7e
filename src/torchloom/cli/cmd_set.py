"""`loom set`: change knobs of a running job, at one step on all ranks."""

import click

from torchloom.cli.command import LoomCommand, Number
from torchloom.cli.output import echo, echo_json, table
from torchloom.cli.steering import numbers, shown, split, tell
from torchloom.errors import UserError

_PROMISE = 1.0  # seconds to wait for a change whose step may be far


@click.command("set", cls=LoomCommand)
@click.argument("words", nargs=-1, metavar="[JOB] [NAME=VALUE ...]")
@click.option("--at", type=Number(0), metavar="STEP", help="Not before this step.")
@click.option("--hold", is_flag=True, help="Pin the value; a schedule no longer moves it.")
@click.option("--reason", default="", metavar="WHY", help="Kept with the change.")
@click.option(
    "--wait", type=click.FloatRange(0), metavar="SECONDS", help="For the outcome; default 30."
)
@click.option("--replay", metavar="FILE", help="Do what this audit log says, at its steps.")
@click.option("--json", "as_json", is_flag=True, help="Print an object, or a list of knobs.")
def command(
    words: tuple[str, ...],
    at: int | None,
    hold: bool,
    reason: str,
    wait: float | None,
    replay: str | None,
    as_json: bool,
) -> None:
    """Change knobs of JOB at one step on all ranks; without values, list them.

    A changed lr keeps the shape of its schedule: it is scaled from that step on. --hold pins it.
    """
    from torchloom.client import plane

    job, values = split(words)
    if replay is not None:
        if values or hold or at is not None:
            raise UserError("--replay brings its own values and steps; leave the others out")
        _replay(job, replay, reason, as_json)
        return
    if not values:
        if hold or at is not None or reason:
            raise UserError("nothing to set; write NAME=VALUE, such as lr=0.03")
        knobs = plane.ask("knobs", job=job)
        if as_json:
            echo_json(knobs)
        else:
            echo(_listed(knobs))
        return
    facts = {"values": values, "hold": hold, "at": at, "reason": reason, "wait": wait}
    outcome = plane.ask("set", None, job=job, **{k: v for k, v in facts.items() if v is not None})
    tell(outcome, as_json)


def _replay(job: str, path: str, reason: str, as_json: bool) -> None:
    """Ask for each change of an audit log; those whose steps are far are only promised."""
    from torchloom.cli.replaying import read_changes
    from torchloom.client import plane

    for change in read_changes(path):
        wish = {**change, "reason": reason or change["reason"], "wait": _PROMISE}
        tell(plane.ask("set", None, job=job, **wish), as_json)


def _listed(knobs: list[dict[str, object]]) -> str:
    if not knobs:
        return "no knobs; a program has some once its optimizer has stepped, or by run.knob()"
    rows = [
        (
            str(knob["name"]),
            shown(knob["value"]),
            str(knob["type"]),
            f"{_end(knob['low'])}..{_end(knob['high'])}",
            numbers(knob["ranks"]),  # type: ignore[arg-type]
        )
        for knob in knobs
    ]
    return table(("KNOB", "VALUE", "TYPE", "RANGE", "RANKS"), rows)


def _end(bound: object) -> str:
    return "" if bound is None else shown(bound)
