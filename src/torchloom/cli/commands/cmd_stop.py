"""`loom stop`: stop jobs and print how they ended."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from torchloom.cli.command import LoomCommand, Number, examples
from torchloom.cli.jobs import control, engine
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
from torchloom.runner import job_lookup
from torchloom.runner.api import Runner, get_runner
from torchloom.runner.job_lookup import find_job, find_run_or_job
from torchloom.schedulers.local_scheduler import create_scheduler

REASON = "cancelled_by_user"
OVER = ("COMPLETED", "FAILED", "CANCELLED")
_PROMISE = 2.0  # seconds for the ranks to agree on a step, which may be distant
_PATIENCE = 3600.0  # seconds for them to reach it


@click.command(
    "stop",
    cls=LoomCommand,
    epilog=examples(
        'loom stop gpt --reason "loss diverged"',
        "loom stop gpt --at 5000               # all ranks end before step 5000",
        "loom stop --all --state queued --yes",
    ),
)
@click.argument("jobs", nargs=-1)
@click.option("--now", is_flag=True, help="Send SIGKILL at once.")
@click.option("--at", type=Number(0), metavar="STEP", help="Stop all ranks before this step.")
@click.option("--reason", default="", metavar="WHY", help="Recorded with the job.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the jobs have ended.")
@click.option("--all", "every", is_flag=True, help="Stop all jobs, or those in a --state.")
@click.option(
    "--state", "states", multiple=True, metavar="STATE", help="With --all: only jobs in this state."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
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
    """Stop JOBS: SIGTERM, then SIGKILL after a grace period. Logs and records are kept.

    With --at all ranks end before the same step, as if their data had ended there. A job without
    ranks, because it was released or waits for its next attempt, is cancelled; its checkpoints
    are kept. JOBS defaults to the only active job; if another shell started it, a terminal asks
    for confirmation. With --all, queued jobs leave the queue before running jobs are stopped.
    """
    if now and at is not None:
        raise UserError("--now and --at exclude each other")
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
            echo_json([]) if as_json else say("no job is in this state")
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
        if job_lookup.is_of_the_queue(job_lookup.live_job(job) or {}):
            more, failed = _leave_queue([job], reason, as_json)
            shapes, code = [*shapes, *more], max(code, failed)
            continue
        if now or as_json:
            raise UserError(
                f"{job} was not launched by loom: its ranks can only be asked to end; "
                "leave --now and --json out"
            )
        _end_at(job, at, reason, no_wait, as_json)
    if not found:
        echo_json(shapes) if as_json and shapes else None
        return code
    between = _between(found)
    if between and at is not None:
        raise UserError(f"{min(between)} has no ranks that could reach a step")
    for job in between:
        _cancel(job, reason)
    runner = get_runner()
    if at is None:
        _end(runner, [each for each in found if each.id not in between], reason or REASON, now)
    else:
        for record in found:
            _end_at(record.id, at, reason, no_wait, as_json)
    ended = found if no_wait else [_waited(runner, each, between) for each in found]
    known = {record.id: job_lookup.live_job(record.id) for record in found if record.is_over()}
    if as_json:
        echo_json([*shapes, *(job_shape(each, live=known.get(each.id)) for each in ended)])
        return code
    for before, after in zip(found, ended, strict=True) if at is None or not no_wait else ():
        had = "had already ended: " if before.is_over() else ""
        had = between.get(after.id, had)
        click.echo(f"{after.id} {had}{state_of(after, known.get(after.id))}")
    return code


def _all_of(states: Sequence[str], yes: bool) -> tuple[str, ...]:
    """Return the jobs in some states, after the user has confirmed."""
    from torchloom.client import plane

    found = plane.ask("jobs", active=True)
    jobs = tuple(job["id"] for job in found if job["state"] in states)
    control.agree_to_stop(jobs, yes)
    return jobs


def _waiting(jobs: Sequence[str]) -> dict[str, None]:
    """Return the jobs among some ids that have not started yet; one request for all."""
    known = job_lookup.live_jobs(list(jobs)) if jobs else {}
    queued = [job for job in jobs if job in known and known[job]["state"] == "QUEUED"]
    return dict.fromkeys(job for job in queued if catalog.record(job) is None)


def _agree(record: RunRecord | None, strangers: Sequence[str]) -> None:
    """Print which job is stopped; ask for confirmation unless this shell started it."""
    job = record.id if record else strangers[0]
    known = job_lookup.live_job(job)
    state = state_of(record, known) if record else (known or {}).get("state", "")
    started = record.created_at if record else (known or {}).get("created_at")
    if _is_from_here(record, known):
        say(f"stopping {job} ({state})")
        return
    what = f"{job} ({state}, started {age(started)} ago, not from this shell)"
    agree(f"stop {what}?", f"{job} was not stopped")


def _is_from_here(record: RunRecord | None, known: job_lookup.Live | None) -> bool:
    """Tell whether a job was started or submitted from this shell's session."""
    mine = ProcessIdentity.of_session()
    submitted = ((known or {}).get("facts") or {}).get("shell")
    theirs = [
        record.shell if record else None,
        ProcessIdentity.from_dict(submitted) if submitted else None,
    ]
    return mine is not None and mine in theirs


def _between(found: Sequence[RunRecord]) -> dict[str, str]:
    """Return the jobs that are active though their last run has ended, with a prefix for output."""
    known = {record.id: job_lookup.live_job(record.id) for record in found if record.is_over()}
    return {
        record.id: "was released: " if is_released(facts) else ""
        for record in found
        if (facts := known.get(record.id)) and is_ahead(record, facts)
        if facts["state"] not in OVER
    }


def _leave_queue(
    jobs: Iterable[str], reason: str, as_json: bool
) -> tuple[list[dict[str, Any]], int]:
    """Cancel queued jobs together; return them and an exit code."""
    names = list(jobs)
    if not names:
        return [], 0
    from torchloom.cli.submit import queue

    done = queue.cancel_many(names, reason)
    code = control.show_stopped(done, as_json)
    return [with_both_states(one["ok"]) for one in done if "ok" in one], code


def _cancel(job: str, reason: str) -> dict[str, Any]:
    """Cancel a job that has no ranks."""
    from torchloom.cli.submit import queue

    return queue.cancel(job, reason)


def _end(runner: Runner, jobs: list[RunRecord], reason: str, now: bool) -> None:
    scheduler = create_scheduler(runner.name())
    for record in jobs:
        scheduler.stop(record.id, reason, at_once=now)


def _found(jobs: Sequence[str | None]) -> tuple[list[RunRecord], list[str]]:
    """Return the runs of jobs, and the ids of jobs that only the plane knows."""
    records, strangers = [], []
    for job in jobs:
        try:
            found = find_run_or_job(job)
        except UserError as error:
            known = None if isinstance(error, Ambiguous) else job_lookup.live_job(job or "")
            if known is None or not is_released(known):
                raise
            found = find_job(known["id"])
        if isinstance(found, RunRecord):
            records.append(found)
        else:
            strangers.append(found["id"])
    return records, strangers


def _end_at(job: str, at: int | None, reason: str, no_wait: bool, as_json: bool) -> None:
    """Stop the ranks of a job before a step, or before the next one possible."""
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
