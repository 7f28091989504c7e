"""`loom stop`: end jobs and say how they ended."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from torchloom.cli.command import LoomCommand, Number
from torchloom.cli.jobs import control, engine, job_shapes
from torchloom.cli.jobs.job_shapes import (
    handle_of,
    is_ahead,
    is_released,
    job_shape,
    state_of,
    with_both_states,
)
from torchloom.cli.output import age, agree, echo, echo_json, is_attended, say
from torchloom.errors import Ambiguous, UserError
from torchloom.launch.host.identity import ProcessIdentity
from torchloom.launch.records import catalog
from torchloom.launch.records.record import RunRecord
from torchloom.runner.api import Runner, get_runner
from torchloom.runner.job_lookup import find_job
from torchloom.schedulers.local_scheduler import create_scheduler

REASON = "cancelled_by_user"
OVER = ("COMPLETED", "FAILED", "CANCELLED")
_PROMISE = 2.0  # seconds in which ranks agree on a step that may be far
_PATIENCE = 3600.0  # seconds for them to come to it


@click.command("stop", cls=LoomCommand)
@click.argument("jobs", nargs=-1)
@click.option("--now", is_flag=True, help="SIGKILL at once, without grace.")
@click.option("--at", type=Number(0), metavar="STEP", help="After the step before this one.")
@click.option("--reason", default="", metavar="WHY", help="Kept with the job.")
@click.option("--no-wait", is_flag=True, help="Do not wait for the end.")
@click.option("--all", "every", is_flag=True, help="All jobs of the plane, or those in a --state.")
@click.option(
    "--state", "states", multiple=True, metavar="STATE", help="With --all: such as queued."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print a list.")
def command(
    jobs: tuple[str, ...],
    now: bool,
    at: int | None,
    reason: str,
    no_wait: bool,
    every: bool,
    states: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> int:
    """End JOBS: SIGTERM, their grace, SIGKILL. Logs and records stay.

    With --at all ranks end before one and the same step, as if their data had ended there. One that
    was released, or is about to go on, has no ranks: it is cancelled, and its checkpoints stay.
    Without JOB the only active one is meant; on a terminal it is named, and if another shell
    started it you are asked. With --all those that wait leave the queue together, before any
    other ends, so that none of them starts.
    """
    if now and at is not None:
        raise UserError("--now does not wait for a step; leave --at out, or --now")
    elsewhere = {job: handle for job in jobs if (handle := engine.handle_of(job))}
    if elsewhere and at is None:
        engine.stop(list(elsewhere.values()), now, no_wait, as_json)
        jobs = tuple(job for job in jobs if job not in elsewhere)
        if not jobs:
            return 0
    if every or states:
        wanted = control.states_of_all(every, jobs, at, states)
        jobs = _all_of(wanted, yes)
        if not jobs:
            echo_json([]) if as_json else say("no job is in such a state")
            return 0
    waiting = _waiting(jobs)
    shapes, code = _leave_queue(waiting, reason, as_json)
    jobs = tuple(job for job in jobs if job not in waiting)
    if waiting and not jobs:
        echo_json(shapes) if as_json else None
        return code
    found, strangers = _found(jobs or (None,))
    if not jobs and not yes and is_attended():
        _agree(next(iter(found), None), strangers)
    for job in strangers:
        if job_shapes.is_of_the_queue(job_shapes.live_job(job) or {}):
            more, failed = _leave_queue([job], reason, as_json)
            shapes, code = [*shapes, *more], max(code, failed)
            continue
        if now or as_json:
            raise UserError(f"nobody of ours launched {job}: its ranks can only be asked to end")
        _end_at(job, at, reason, no_wait, as_json)
    if not found:
        echo_json(shapes) if as_json and shapes else None
        return code
    between = _between(found)
    if between and at is not None:
        raise UserError(f"{min(between)} has no ranks now that could come to a step")
    for job in between:
        _cancel(job, reason)
    runner = get_runner()
    if at is None:
        _end(runner, [each for each in found if each.id not in between], reason or REASON, now)
    else:
        for record in found:
            _end_at(record.id, at, reason, no_wait, as_json)
    ended = found if no_wait else [_waited(runner, each, between) for each in found]
    known = {record.id: job_shapes.live_job(record.id) for record in found if record.is_over()}
    if as_json:
        echo_json([*shapes, *(job_shape(each, live=known.get(each.id)) for each in ended)])
        return code
    for before, after in zip(found, ended, strict=True) if at is None or not no_wait else ():
        had = "had already ended: " if before.is_over() else ""
        had = between.get(after.id, had)
        click.echo(f"{after.id} {had}{state_of(after, known.get(after.id))}")
    return code


def _all_of(states: Sequence[str], yes: bool) -> tuple[str, ...]:
    """Return the jobs in some states, once the caller has agreed to end them."""
    from torchloom.client import plane

    found = plane.ask("jobs", active=True)
    jobs = tuple(job["id"] for job in found if job["state"] in states)
    control.agree_to_stop(jobs, yes)
    return jobs


def _waiting(jobs: Sequence[str]) -> dict[str, None]:
    """Return those of some ids that wait for their first turn, with one question for all."""
    known = job_shapes.live_jobs(list(jobs)) if jobs else {}
    queued = [job for job in jobs if job in known and known[job]["state"] == "QUEUED"]
    return dict.fromkeys(job for job in queued if catalog.record(job) is None)


def _agree(record: RunRecord | None, strangers: Sequence[str]) -> None:
    """Name the job that is meant; have a person agree unless it was started from this shell."""
    job = record.id if record else strangers[0]
    known = job_shapes.live_job(job)
    state = state_of(record, known) if record else (known or {}).get("state", "")
    started = record.created_at if record else (known or {}).get("created_at")
    if _is_from_here(record, known):
        say(f"stopping {job} ({state})")
        return
    what = f"{job} ({state}, started {age(started)} ago, not from this shell)"
    agree(f"stop {what}?", f"{job} was not stopped")


def _is_from_here(record: RunRecord | None, known: job_shapes.Live | None) -> bool:
    """Tell whether the leader of our session led the one that started or submitted a job."""
    mine = ProcessIdentity.of_session()
    submitted = ((known or {}).get("facts") or {}).get("shell")
    theirs = [
        record.shell if record else None,
        ProcessIdentity.from_dict(submitted) if submitted else None,
    ]
    return mine is not None and mine in theirs


def _between(found: Sequence[RunRecord]) -> dict[str, str]:
    """Return the jobs that are not over though their last run is, with the words for that."""
    known = {record.id: job_shapes.live_job(record.id) for record in found if record.is_over()}
    return {
        record.id: "was released: " if is_released(facts) else ""
        for record in found
        if (facts := known.get(record.id)) and is_ahead(record, facts)
        if facts["state"] not in OVER
    }


def _leave_queue(
    jobs: Iterable[str], reason: str, as_json: bool
) -> tuple[list[dict[str, Any]], int]:
    """Have jobs that wait leave the queue together; return them, and an exit code."""
    names = list(jobs)
    if not names:
        return [], 0
    from torchloom.cli.submit import queue

    done = queue.cancel_many(names, reason)
    code = control.show_stopped(done, as_json)
    return [with_both_states(one["ok"]) for one in done if "ok" in one], code


def _cancel(job: str, reason: str) -> dict[str, Any]:
    """Have the plane end a job that has no ranks."""
    from torchloom.cli.submit import queue

    return queue.cancel(job, reason)


def _end(runner: Runner, jobs: list[RunRecord], reason: str, now: bool) -> None:
    scheduler = create_scheduler(runner.name())
    for record in jobs:
        scheduler.stop(record.id, reason, at_once=now)


def _found(jobs: Sequence[str | None]) -> tuple[list[RunRecord], list[str]]:
    """Return the runs that are meant, and the jobs that only the plane knows."""
    records, strangers = [], []
    for job in jobs:
        try:
            records.append(find_job(job))
        except UserError as error:
            if isinstance(error, Ambiguous):
                raise
            if known := job_shapes.plane_only_job(job):
                strangers.append(known["id"])
            elif is_released(known := job_shapes.live_job(job or "")):
                records.append(find_job(known["id"] if known else job))
            else:
                raise
    return records, strangers


def _end_at(job: str, at: int | None, reason: str, no_wait: bool, as_json: bool) -> None:
    """Have the ranks of a job agree to end before a step, or the next one they can."""
    from torchloom.cli.jobs.control import settle

    facts: dict[str, Any] = {"reason": reason, "wait": _PROMISE if no_wait else _PATIENCE}
    if at is not None:
        facts["at"] = at
    outcome = settle("stop", job=job, **facts)
    if not as_json:
        for line in control.in_words(outcome):
            echo(line)


def _waited(runner: Runner, record: RunRecord, between: Mapping[str, str]) -> RunRecord:
    if record.id in between:
        from torchloom.cli.submit import queue

        queue.waited(record.id)
    runner.wait(handle_of(record))
    return find_job(record.id)
