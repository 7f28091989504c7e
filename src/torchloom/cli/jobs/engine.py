"""The verbs for jobs of another engine, by handle or by name."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from torchloom import settings
from torchloom.cli.jobs.job_shapes import engine_job_shape, paint_state, step_of
from torchloom.cli.output import echo, echo_json, printable, say, table, visible, write_as_is
from torchloom.cli.verbs import VERBS
from torchloom.errors import Ambiguous, NotFound, UserError
from torchloom.launch.logs.reader import Wait
from torchloom.launch.records import catalog
from torchloom.launch.records.record import RunRecord
from torchloom.launch.records.resumption import Continuation
from torchloom.runner import job_lookup
from torchloom.runner.api import Runner, get_runner
from torchloom.schedulers import LOCAL
from torchloom.schedulers.batch import index
from torchloom.schedulers.batch.logs import records, waiting
from torchloom.schedulers.batch.scheduler import BatchScheduler
from torchloom.sealed import hide_in_spec
from torchloom.specs.api import (
    AppState,
    AppStatus,
    is_terminal,
    make_app_handle,
    parse_app_handle,
)
from torchloom.specs.states import job_state_of
from torchloom.workspace import sources


def handle_of(reference: str | None) -> str | None:
    """Return the handle of a job of another engine; None if the reference is not one."""
    if reference is None:
        return None
    if "://" in reference:
        backend, _, _ = parse_app_handle(reference)
        return None if backend in LOCAL else reference
    found = list(index.find(reference))
    newest = _newest_here(reference) if found else None
    if newest is not None:
        found = [entry for entry in found if entry.created_at > newest.created_at]
    if len(found) > 1:
        raise Ambiguous("job", reference, [entry.run_id for entry in found])
    return make_app_handle(found[0].engine, found[0].session, found[0].job) if found else None


def _newest_here(name: str) -> RunRecord | None:
    """Return the newest run of this name that belongs to no other engine."""
    theirs = {entry.run_id for engine in index.engines() for entry in index.Index(engine).all()}
    named = (record for record in catalog.records() if record.name == name)
    return next((r for r in named if not {r.id, r.id.rpartition("-")[0]} & theirs), None)


def steer(verb: str, words: Sequence[str]) -> int | list[str]:
    """Run a verb inside the allocation of another engine's job and return its exit code.

    If the job's plane is on this host, return the words with the job's run id instead. The first
    word that is neither a flag nor a value names the job.
    """
    place = _place(verb, words)
    if place is None or (handle := handle_of(words[place])) is None:
        return list(words)
    backend, _, app_id = parse_app_handle(handle)
    scheduler = get_runner().scheduler(backend)
    entry = scheduler.entry(app_id) if isinstance(scheduler, BatchScheduler) else None
    if entry is None or not isinstance(scheduler, BatchScheduler):
        raise NotFound("job", handle, (), "only jobs submitted from here can be controlled")
    named = [*words[:place], entry.run_id, *words[place + 1 :]]
    if settings.is_inside() or _is_watched_here(entry.run_id):
        return named
    argv = scheduler.inside(app_id, [sys.executable, "-m", "torchloom", verb, *named])
    if argv is None and verb == "resume":
        again = scheduler.resubmit(app_id, _continuation(named))
        echo(make_app_handle(backend, scheduler.session_name, again))
        return 0
    if argv is None:
        raise UserError(f"{handle} is not running: {verb} needs a running job")
    return subprocess.run(argv, check=False).returncode


def _place(verb: str, words: Sequence[str]) -> int | None:
    """Return the index of the word that names the job; None if there is none."""
    valued = {flag[:-1] for flag in VERBS[verb].flags if flag.endswith("=")}
    for place, word in enumerate(words):
        is_value = place > 0 and words[place - 1] in valued
        if not (word.startswith("-") or "=" in word or is_value):
            return place
    return None


def _continuation(words: Sequence[str]) -> Continuation:
    from torchloom.cli.commands.cmd_resume import command

    with command.make_context("loom resume", list(words)) as context:
        found = context.params
    return Continuation(found["workers"], found["step"], found["until"], found["from_scratch"])


def _is_watched_here(run_id: str) -> bool:
    """Tell whether ranks of a run are connected to this host's plane."""
    known = job_lookup.live_job(run_id)
    return known is not None and any(rank["state"] == "up" for rank in known["ranks"])


def show(
    handle: str,
    wait: bool,
    spec: bool,
    roles: str | None,
    as_json: bool,
    in_words: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> int:
    """Print one job: its state and reason, its replicas and their hosts."""
    runner = get_runner()
    status = runner.wait(handle) if wait else runner.status(handle)
    if status is None:
        raise NotFound("job", handle, (), f"`loom ls -s {parse_app_handle(handle)[0]}` lists some")
    wanted = roles.split(",") if roles else None
    if spec:
        _show_spec(runner, handle, as_json)
    elif as_json:
        echo_json(in_words(_shape(runner, handle, status, wanted)))
    else:
        _show(in_words(_shape(runner, handle, status, wanted)), status)
    return 1 if wait and status.state is not AppState.SUCCEEDED else 0


def _shape(
    runner: Runner, handle: str, status: AppStatus, wanted: list[str] | None
) -> dict[str, Any]:
    entry = _entry(runner, handle)
    record = catalog.record(entry.run_id) if entry else None
    source = sources.kept(Path(entry.folder)) if entry else None
    shape = engine_job_shape(handle, entry.name if entry else "", status.state)
    return {
        **shape,
        "run_id": entry.run_id if entry else None,
        "reason": status.msg or (record.why() if record else ""),
        "step": step_of(record, job_lookup.live_job(record.id)) if record else None,
        "restarts": status.num_restarts,
        "error": status.structured_error_msg,
        "folder": entry.folder if entry else None,
        "cwd": source.cwd if source else None,
        "commit": source.commit if source else None,
        "is_changed": source.is_changed if source else None,
        "replicas": [
            {"role": one.role, "replica": one.id, "state": one.state.name, "node": one.hostname}
            for role in status.roles
            for one in role.replicas
            if wanted is None or role.role in wanted
        ],
    }


def _show(shape: dict[str, Any], status: AppStatus) -> None:
    why = f"  {printable(shape['reason'])}" if shape["reason"] else ""
    facts = [("handle", shape["handle"]), ("state", paint_state(shape["state"]) + why)]
    facts += [(name, str(shape[key])) for name, key in _SHOWN.items() if shape[key] is not None]
    if shape["commit"]:
        facts.append(("commit", shape["commit"] + " and changes" * shape["is_changed"]))
    for name, value in facts:
        click.echo(f"{name:<9}{value}")
    rows = [(r["role"], str(r["replica"]), r["state"], r["node"] or "-") for r in shape["replicas"]]
    if rows:
        click.echo("\n" + table(("ROLE", "REPLICA", "STATE", "HOST"), rows))
    _show_error(status)


_SHOWN = {
    "name": "name",
    "run": "run_id",
    "step": "step",
    "restarts": "restarts",
    "folder": "folder",
    "cwd": "cwd",
}


def _show_error(status: AppStatus) -> None:
    from torchloom.specs.api import NONE
    from torchloom.specs.status import read_error

    if status.structured_error_msg not in (NONE, ""):
        report = read_error(status.structured_error_msg)
        error = report.message if report else status.structured_error_msg
        click.echo(f"\nfirst error:\n{visible(error)}")


def _show_spec(runner: Runner, handle: str, as_json: bool) -> None:
    from torchloom.specs.api import app_to_dict

    app = runner.describe(handle)
    if app is None:
        raise NotFound("job", handle)
    shown = hide_in_spec(app_to_dict(app))
    if as_json:
        echo_json(shown)
        return
    import yaml

    click.echo(yaml.safe_dump(shown, sort_keys=False).rstrip())


def begun(handle: str, follow: bool) -> tuple[RunRecord, Wait] | None:
    """Return the run of a job and a wait function for its end; with `follow`, wait for its start.

    Returns None if it has no run or several: then the engine's own log reader is used.
    """
    backend, _, app_id = parse_app_handle(handle)
    scheduler = get_runner().scheduler(backend)
    if not isinstance(scheduler, BatchScheduler) or (entry := scheduler.entry(app_id)) is None:
        return None
    found = scheduler.begun(app_id) if follow else records(entry.run_id)
    if list(found) != [""]:
        return None
    return found[""], waiting(partial(scheduler.is_over, app_id))


def run_id(handle: str) -> str:
    """Return the run id of a job, or the handle if it was not submitted from here."""
    entry = _entry(get_runner(), handle)
    return entry.run_id if entry else handle


def logs(
    handle: str,
    role: str | None,
    replicas: Callable[[int], bool],
    follow: bool,
    regex: str | None,
    since: datetime | None,
    until: datetime | None,
    stream: str,
    seconds: float | None,
) -> None:
    """Print the log lines of some replicas or of all."""
    backend, _, app_id = parse_app_handle(handle)
    runner = get_runner()
    scheduler = runner.scheduler(backend)
    if not isinstance(scheduler, BatchScheduler):
        lines = runner.log_lines(handle, role or "", 0, regex, since, until, follow)
    else:
        places = _places(scheduler, app_id, role, replicas)
        wanted = (follow, regex, since, until, stream)
        lines = scheduler.log_lines(app_id, places, *wanted, seconds=seconds)
    show = sys.stdout.write if seconds is not None else write_as_is  # raw
    for line in lines:
        show(line if line.endswith("\n") else f"{line}\n")
        sys.stdout.flush()


def _places(
    scheduler: BatchScheduler, app_id: str, role: str | None, replicas: Callable[[int], bool]
) -> list[tuple[str, int]]:
    entry = scheduler.entry(app_id)
    if entry is None:
        raise NotFound("job", app_id, (), "its logs are on the host that submitted it")
    if role is not None and role not in entry.replicas:
        known = ", ".join(entry.replicas)
        raise NotFound("role", role, entry.replicas, f"{entry.run_id} has: {known}")
    roles = [role] if role else list(entry.replicas)
    return [(name, i) for name in roles for i in range(entry.replicas[name]) if replicas(i)]


def stop(handles: Sequence[str], now: bool, no_wait: bool, as_json: bool) -> None:
    """Stop jobs through their engine and print how they ended."""
    runner = get_runner()
    before = {handle: runner.status(handle) for handle in handles}
    for handle, status in before.items():
        if status is None:
            raise NotFound("job", handle, (), f"`loom ls -s {parse_app_handle(handle)[0]}`")
        if not is_terminal(status.state):
            _stop(runner, handle, now)
    for handle in [] if no_wait or now else handles:
        _kill_after_grace(runner, handle)
    ended = {h: runner.status(h) if no_wait else runner.wait(h, 1.0) for h in handles}
    states = {h: s.state if s else AppState.UNKNOWN for h, s in ended.items()}
    if as_json:
        echo_json([engine_job_shape(h, _name(runner, h), state) for h, state in states.items()])
        return
    for handle, state in states.items():
        found = before[handle]
        had = "had already ended: " if found is not None and is_terminal(found.state) else ""
        echo(f"{handle} {had}{job_state_of(state)}")


def _stop(runner: Runner, handle: str, now: bool) -> None:
    backend, _, app_id = parse_app_handle(handle)
    scheduler = runner.scheduler(backend)
    if isinstance(scheduler, BatchScheduler):
        scheduler.stop(app_id, at_once=now)
    else:
        runner.cancel(handle)


def _kill_after_grace(runner: Runner, handle: str) -> None:
    """Kill a job through its engine if it has not ended by itself within its grace period."""
    backend, _, app_id = parse_app_handle(handle)
    scheduler = runner.scheduler(backend)
    if not isinstance(scheduler, BatchScheduler):
        return
    deadline = time.monotonic() + scheduler.stop_limit(app_id)
    while not scheduler.is_over(app_id):
        if time.monotonic() > deadline:
            say(f"{handle} did not end in time; its engine kills it")
            scheduler.stop(app_id, at_once=True)
            return
        scheduler.wait(app_id, 1.0)


def remove(handles: Sequence[str]) -> list[str]:
    """Remove ended jobs and their folders."""
    runner = get_runner()
    for handle in handles:
        backend, _, app_id = parse_app_handle(handle)
        scheduler = runner.scheduler(backend)
        if not scheduler.exists(app_id):
            raise NotFound("job", handle, (), f"`loom ls -s {backend}` lists jobs")
        if not isinstance(scheduler, BatchScheduler):
            raise UserError(f"{backend} has no jobs to remove")
        scheduler.delete(app_id)
    return list(handles)


def _entry(runner: Runner, handle: str) -> index.IndexEntry | None:
    backend, _, app_id = parse_app_handle(handle)
    scheduler = runner.scheduler(backend)
    return scheduler.entry(app_id) if isinstance(scheduler, BatchScheduler) else None


def _name(runner: Runner, handle: str) -> str:
    entry = _entry(runner, handle)
    return entry.name if entry else ""
