"""`loom set`: change knobs of a running job at one step on all ranks."""

from pathlib import Path
from typing import Any

import click

from torchloom.cli.command import LoomCommand, Number, examples
from torchloom.cli.jobs.control import WAIT, ask, numbers, settle, show_outcome, shown, split
from torchloom.cli.output import echo, echo_json, table
from torchloom.errors import UserError

_DONE = ("applied", "committed")
_PROMISE = 1.0  # seconds to wait for a change whose step may be distant


def read_changes(path: str) -> list[dict[str, Any]]:
    """Return the knob changes of an audit log that `loom inspect JOB audit --yaml` wrote."""
    import yaml

    try:
        log = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not YAML: {str(error).splitlines()[0]}") from error
    try:
        done = [one for one in log if one["kind"] == "knob" and one["state"] in _DONE]
        return [_change(one) for one in done]
    except (TypeError, KeyError, AttributeError) as error:
        remedy = "write one with `loom inspect JOB audit --yaml`"
        raise UserError(f"{path} is not an audit log; {remedy}") from error


def _change(one: dict[str, Any]) -> dict[str, Any]:
    payload = one["payload"]
    values = payload.get("values") or {payload["name"]: payload["value"]}
    return {
        "known": one["id"],
        "undo": payload.get("undo", ""),
        "values": values,
        "hold": bool(payload.get("hold")),
        "at": one["effective_step"],
        "reason": one["reason"] or f"replay of {one['job']}",
    }


@click.command(
    "set",
    cls=LoomCommand,
    epilog=examples(
        "loom set gpt                  # lists the knobs",
        "loom set gpt lr=3e-4 --at 5000",
        'loom set gpt lr=1e-3 --guard "loss>1.5x" --for 500',
    ),
)
@click.argument("words", nargs=-1, metavar="[JOB] [NAME=VALUE ...]")
@click.option("--at", type=Number(0), metavar="STEP", help="Earliest step of the change.")
@click.option("--hold", is_flag=True, help="Keep the value fixed, whatever the schedule.")
@click.option("--reason", default="", metavar="WHY", help="Recorded in the audit log.")
@click.option("--wait", type=click.FloatRange(0), metavar="SECONDS", help=WAIT)
@click.option(
    "--guard",
    metavar="CONDITION",
    help="Undo the change if this becomes true: 'loss>2.0', 'loss>1.5x', 'loss is nan'.",
)
@click.option(
    "--for", "span", type=Number(1), metavar="STEPS", help="How long --guard applies; default 200."
)
@click.option(
    "--undo",
    is_flag=False,
    flag_value="",
    metavar="[COMMAND]",
    help="Undo the last change, or the one with this id.",
)
@click.option("--replay", metavar="FILE", help="Apply the changes recorded in an audit log.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object, or a list of knobs.")
def command(
    words: tuple[str, ...],
    at: int | None,
    hold: bool,
    reason: str,
    wait: float | None,
    guard: str | None,
    span: int | None,
    undo: str | None,
    replay: str | None,
    as_json: bool,
) -> None:
    """Change knobs of JOB at one step on all ranks; without values, list the knobs.

    A new lr scales the learning rate schedule from that step on; --hold pins the value instead.
    --undo restores the earlier value and schedule. JOB defaults to the only active job.
    """
    job, values = split(words)
    if span is not None and guard is None:
        raise UserError("--for needs a guard, such as --guard 'loss>2.0'")
    options = {"hold": hold or None, "guard": guard, "span": span}
    facts = {"at": at, "reason": reason or None, "wait": wait}
    alone = {name: value for name, value in options.items() if value is not None}
    if replay is not None:
        if values or alone or at is not None or undo is not None:
            raise UserError("--replay takes values and steps from the file; leave the others out")
        _replay(job, replay, reason, as_json)
    elif undo is not None:
        if values or alone:
            raise UserError("--undo restores earlier values; it takes no others")
        show_outcome(ask("undo", job=job, **facts, command=undo), as_json)
    elif values:
        show_outcome(ask("set", job=job, **facts, **options, values=values), as_json)
    elif alone or at is not None or reason:
        raise UserError("nothing to set; write NAME=VALUE, such as lr=0.03")
    else:
        _list(job, wait, as_json)


def _list(job: str, wait: float | None, as_json: bool) -> None:
    knobs = ask("knobs", job=job, wait=wait)
    if as_json:
        echo_json(knobs)
    else:
        echo(_listed(knobs))


def _replay(job: str, path: str, reason: str, as_json: bool) -> None:
    """Request each change of an audit log; distant steps are accepted without waiting for them."""
    names: dict[str, str] = {}  # command ids in the log, and the ids here
    for change in read_changes(path):
        known, undo = change.pop("known"), change.pop("undo")
        request = {**change, "reason": reason or change["reason"], "wait": _PROMISE}
        if undo in names:
            request["undo"] = names[undo]
        outcome = settle("set", job=job, **request)
        names[known] = outcome["id"]
        show_outcome(outcome, as_json)


def _listed(knobs: list[dict[str, object]]) -> str:
    if not knobs:
        return "no knobs yet: the first optimizer step or run.knob() registers them"
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
