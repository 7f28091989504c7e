"""The verbs for jobs of a plane on another host, over HTTP."""

import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from torchloom.cli.command import (
    LoomCommand,
    Number,
    WaitNotice,
    examples,
    key_option,
    repeat_in_words,
)
from torchloom.cli.jobs import control, job_shapes
from torchloom.cli.jobs.job_shapes import paint_state
from torchloom.cli.output import age, agree, echo, echo_json, is_attended, printable, say, table
from torchloom.client import chosen
from torchloom.client.errors import Unreachable
from torchloom.client.http import Client, PlaneFailed
from torchloom.errors import UserError

_SCREENFUL = 30
_AGAIN = 1.0  # seconds before a lost submission is sent again
_SPECS = (".yaml", ".yml", ".json")
_DONE = "COMPLETED"
_OURS = {"SUCCEEDED": _DONE, "PENDING": "QUEUED"}  # TorchX's state names, and ours
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_torchx = click.option("--as-torchx", is_flag=True, hidden=True)  # `loom list`, `loom status`


@click.command(
    "ls", cls=LoomCommand, epilog=examples("loom ls --state running", "loom ls --all --json")
)
@click.option("--state", metavar="STATE", help="Only jobs in this state, such as running.")
@click.option("--limit", type=Number(1), metavar="N", help=f"Number of jobs; default {_SCREENFUL}.")
@click.option("--all", "every", is_flag=True, help="List all jobs.")
@_json
@_torchx
def ls(state: str | None, limit: int | None, every: bool, as_json: bool, as_torchx: bool) -> None:
    """List the jobs of the plane in use, newest first."""
    most = limit or (None if every or as_json else _SCREENFUL)
    with chosen.client() as client:
        jobs = client.jobs(state=_OURS.get(state.upper(), state.upper()) if state else None)
        in_words = job_shapes.as_torchx if as_torchx else dict
        found = [in_words(job_shapes.with_both_states(job)) for job in _first(jobs, most)]
    if as_json:
        echo_json(found)
        return
    rows = [
        (one["id"], one["owner"], one["state"], _step(one), age(one["created_at"]), one["reason"])
        for one in found
    ]
    heads = ("ID", "OWNER", "STATE", "STEP", "AGE", "REASON")
    echo(table(heads, rows, {"STATE": paint_state}))


@click.command(
    "show",
    cls=LoomCommand,
    epilog=examples("loom show gpt", "loom show gpt --wait     # exits with 0 if gpt completes"),
)
@click.argument("job", default="")
@click.option("--wait", is_flag=True, help=f"Wait until the job ends; exit with 1 unless {_DONE}.")
@click.option("--spec", is_flag=True, help="Print the spec as submitted.")
@click.option("--events", is_flag=True, help="Print the events of the job.")
@_json
@_torchx
def show(job: str, wait: bool, spec: bool, events: bool, as_json: bool, as_torchx: bool) -> int:
    """Show one job of the plane in use: its state and why, its ranks."""
    with chosen.client() as client:
        name = chosen.meant(client, job)
        if wait:
            for _ in client.follow(name):
                pass
        found = job_shapes.with_both_states(client.job(name))
        found = job_shapes.as_torchx(found) if as_torchx else found
        if events:
            _show_events(client.events(found["id"]), as_json)
        elif as_json:
            echo_json(found["spec"] if spec else found)
        elif spec:
            echo_json(found["spec"])
        else:
            _show(found, client.knobs(found["id"]) if found["ranks"] else [])
    return 1 if wait and found["job_state"] != _DONE else 0


@click.command(
    "logs",
    cls=LoomCommand,
    epilog=examples("loom logs -f gpt", "loom logs gpt --ranks 0,2 --regex loss --last 50"),
)
@click.argument("job", default="")
@click.option("-f", "-t", "--follow", "--tail", is_flag=True, help="Follow until the job ends.")
@click.option("--ranks", metavar="0,2", help="Only these ranks.")
@click.option("--regex", metavar="REGEX", help="Only matching lines.")
@click.option("--since", metavar="TIME", help="Start, such as 2026-01-31T12:00Z.")
@click.option("--until", metavar="TIME", help="End, in the same format.")
@click.option("--level", metavar="LEVEL", help="Minimum level.")
@click.option("--last", type=Number(1), metavar="N", help="Only the last N lines of each rank.")
@_json
def logs(
    job: str, follow: bool, ranks: str | None, last: int | None, as_json: bool, **filters: Any
) -> None:
    """Print the logs of a job of the plane in use."""
    with chosen.client() as client:
        name = chosen.meant(client, job)
        wanted = {**filters, "rank": _numbers(ranks), "tail": last}
        lines = client.follow(name, **wanted) if follow else client.logs(name, **wanted)
        _print(lines, as_json)


@click.command(
    "stop",
    cls=LoomCommand,
    epilog=examples(
        'loom stop gpt --reason "loss diverged"',
        "loom stop gpt --at 5000               # all ranks end before step 5000",
    ),
)
@click.argument("job", default="")
@click.option("--now", is_flag=True, help="Accepted; a remote plane always stops at once.")
@click.option("--at", type=Number(0), metavar="STEP", help="Stop all ranks before this step.")
@click.option("--reason", default="", metavar="WHY", help="Recorded with the job.")
@click.option("--all", "every", is_flag=True, help="Stop all your jobs, or those in a --state.")
@click.option(
    "--state", "states", multiple=True, metavar="STATE", help="With --all: only jobs in this state."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@_json
def stop(
    job: str,
    now: bool,
    at: int | None,
    reason: str,
    every: bool,
    states: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> int | None:
    """Stop a job of the plane in use. Without JOB, asks for confirmation."""
    if every or states:
        wanted = control.states_of_all(every, [job] if job else [], at, states)
        return _stop_all(wanted, reason, yes, as_json)
    if not job and not yes and is_attended():
        with chosen.client() as client:
            job = chosen.meant(client, job)
        agree(f"stop {job}?", f"{job} was not stopped")
    if at is not None:
        control.show_outcome(chosen.ask("stop", job=job, at=at, reason=reason), as_json)
        return None
    with chosen.client() as client:
        done = client.cancel(chosen.meant(client, job), reason)
    if as_json:
        echo_json([job_shapes.with_both_states(done)])
    else:
        echo(f"{done['id']} {done['state']}")
    return None


def _stop_all(states: list[str], reason: str, yes: bool, as_json: bool) -> int:
    """Stop the user's own jobs in some states, in one request."""
    with chosen.client() as client:
        owner = client.me()["user"]
        found = [job["id"] for job in client.jobs(state=states, owner=owner)]
        control.agree_to_stop(found, yes)
        done = client.cancel_many(state=states, owner=owner, reason=reason) if found else []
    outcomes = [{"job": one["id"], "ok": one["job"], **_error(one["problem"])} for one in done]
    if as_json:
        echo_json([job_shapes.with_both_states(one["ok"]) for one in outcomes if one["ok"]])
    return control.show_stopped(outcomes, as_json)


def _error(problem: dict[str, Any] | None) -> dict[str, Any]:
    return {"error": problem["detail"], "code": problem["code"]} if problem else {}


@click.command(
    "run", cls=LoomCommand, epilog=examples("loom run job.yaml", "loom run -d job.yaml --name gpt")
)
@click.argument("target")
@click.option("-d", "--detach", is_flag=True, help="Do not follow the job.")
@click.option("--name", metavar="NAME", help="Name of the job; default: from the file.")
@key_option
@_json
def run(target: str, detach: bool, name: str | None, key: str | None, as_json: bool) -> int:
    """Submit a spec file to the plane in use and follow the job."""
    spec = _spec(target, name)
    with chosen.client() as client:
        job = _submitted(client, spec, key or uuid.uuid4().hex)
        if as_json:
            echo_json(job_shapes.with_both_states(job))
            return 0
        say(f"{job['id']} is {job['state']}: {client.url}/jobs/{job['id']}")
        if detach:
            echo(job["id"])
            return 0
        try:
            _print(client.follow(job["id"]), False)
        except KeyboardInterrupt:
            say(f"still running; `loom logs -f {job['id']}` follows it, `loom stop` stops it")
            raise
        ended = client.job(job["id"])
    say(f"{ended['id']} {ended['state']} {ended['reason']}".rstrip())
    return 0 if ended["state"] == _DONE else 1


def _submitted(client: Client, spec: dict[str, Any], key: str) -> dict[str, Any]:
    """Submit a job; a lost submission is sent again until the plane replies."""
    waiting = WaitNotice("the request is repeated; Ctrl-C prints how to repeat it by hand")
    try:
        while True:
            try:
                return client.submit(spec, key)
            except Unreachable as error:
                if not waiting.is_shown and error.is_unsent:
                    raise
                waiting(str(error).partition(";")[0])
            time.sleep(_AGAIN)
    except (KeyboardInterrupt, PlaneFailed, Unreachable):
        say(repeat_in_words(key))
        raise


COMMANDS = {command.name: command for command in (ls, show, logs, stop, run)}


def _spec(target: str, name: str | None) -> dict[str, Any]:
    """Return the job of a spec file; scripts of this host do not exist on the other one."""
    from torchloom.specs.serialize import parse

    path = Path(target)
    if path.suffix not in _SPECS:
        raise UserError(
            f"{target!r} is not a spec file; a remote plane needs one (job.yaml) that names "
            "programs of its own host; after `loom login --forget` jobs run here"
        )
    try:
        spec = parse(path.read_text(), "json" if path.suffix == ".json" else "yaml")
    except OSError as error:
        raise UserError(f"cannot read {target!r}: {error.strerror}") from error
    if not isinstance(spec, dict):
        raise UserError(f"{target!r} is not a job; a job is a mapping with a name")
    return {**spec, "name": name} if name else spec


def _first(jobs: Iterable[dict[str, Any]], most: int | None) -> list[dict[str, Any]]:
    from itertools import islice

    return list(islice(jobs, most))


def _show(job: dict[str, Any], knobs: list[dict[str, Any]]) -> None:
    from torchloom.cli.monitor.answers import job_text, ranks_text

    echo(job_text({**job, "ranks": job["ranks"] or []}, knobs))
    if job["ranks"]:
        echo("\n" + ranks_text(job["ranks"]))


def _show_events(events: Iterable[dict[str, Any]], as_json: bool) -> None:
    found = list(events)
    if as_json:
        echo_json(found)
        return
    rows = [
        (str(one["time"]), one["kind"], str(one.get("author") or ""), str(one.get("reason") or ""))
        for one in found
    ]
    echo(table(("TIME", "KIND", "AUTHOR", "REASON"), rows))


def _print(lines: Iterable[dict[str, Any]], as_json: bool) -> None:
    import json

    for line in lines:
        text = json.dumps(line) if as_json else f"[{line['rank']}] {printable(line['message'])}"
        echo(text)


def _numbers(ranks: str | None) -> list[int] | None:
    if ranks is None:
        return None
    try:
        return [int(word) for word in ranks.split(",")]
    except ValueError:
        raise UserError(f"{ranks!r} is not a list of ranks; write 0,2,3") from None


def _step(job: dict[str, Any]) -> str:
    return "-" if job["step"] is None else str(job["step"])
