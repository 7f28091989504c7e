"""The job inside an engine's allocation: what the script of a submitted job executes.

It is a launch over the allocation's hosts: the engine's launcher starts the agents, a plane runs
on this host unless there is one, logs and record are in the run's folder. In addition it handles
the time limit, and writes a file about the end for when the engine has forgotten the job.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from torchloom.cli import site
from torchloom.cli.jobs.logs import relay_logs
from torchloom.cli.output import say
from torchloom.cli.submit.submission import Launch
from torchloom.cli.submit.target import TargetKind, TargetRequest
from torchloom.errors import Failure, LoomError, UserError
from torchloom.launch.assembly import choose_launcher
from torchloom.launch.environments import World, find_world
from torchloom.launch.host.identity import host_name
from torchloom.launch.logs.display import Display
from torchloom.launch.records import catalog
from torchloom.launch.records.folder import RunFolder, now
from torchloom.launch.records.parcel import END, STOP, Parcel, write_private
from torchloom.launch.records.record import RunRecord
from torchloom.launch.records.request import AgentCarrier, LaunchRequest, RoleRequest
from torchloom.launch.supervisor.service import TIME_LIMIT, is_over
from torchloom.runner.api import Runner, get_runner
from torchloom.schedulers.batch.folder import entry_of
from torchloom.schedulers.batch.index import Index
from torchloom.schedulers.batch.scheduler import BatchScheduler
from torchloom.schedulers.local_request import RANK0_VARIABLE
from torchloom.schedulers.local_scheduler import LocalScheduler, create_scheduler
from torchloom.settings import environment, wants_plane
from torchloom.specs.api import AppDef, AppDryRunInfo, AppState, app_from_dict

if TYPE_CHECKING:
    import socket

    from torchloom.launch.logs.display import Display
    from torchloom.launch.records.request import Input

# What the engine sends before the time limit: SIGUSR1 to the script, or, if it signals all
# processes of a job, SIGURG, which other processes ignore by default.
WARNINGS = (signal.SIGUSR1, signal.SIGURG)
_POLITE = signal.SIGWINCH  # stands for SIGTERM in jobs of engines that signal all processes
REASON = "requeued_before_limit"
_STOP_POLL = 1.0  # seconds between checks for the stop file
_WHY = "the allocation ends soon"
_PLANE_POLL, _LONGEST_PAUSE = 3.0, 60.0  # seconds between checks for a plane
_APP_ID = re.compile(r"\$\$|\$\{app_id\}|\$app_id(?![A-Za-z0-9_])")


class TimedLaunch(Launch):
    """A launch that reacts to the warning before the time limit: it saves a checkpoint, ends the
    ranks and queues the job again. A job that cannot save keeps running to its limit."""

    ending = (*Launch.ending, *WARNINGS[1:], _POLITE)

    def __init__(
        self,
        runner: Runner,
        scheduler: LocalScheduler,
        request: TargetRequest,
        info: AppDryRunInfo[Any],
        show: "Display",
        requeue: tuple[str, ...],
    ) -> None:
        super().__init__(runner, scheduler, request, info, show)
        self._requeue = requeue
        is_resumed = info.request.launch.attempt > 0
        self._since = datetime.now(UTC) if is_resumed else None  # hides earlier output
        self._warned = threading.Event()
        self._saved = False

    def _start(self, give: "Input", window: bytes) -> "socket.socket":
        channel = super()._start(give, window)
        threading.Thread(target=self._watch_stop_file, daemon=True).start()
        return channel

    def _watch_stop_file(self) -> None:
        """Stop when the stop file appears in the job's folder: a signal may have been lost."""
        file = Path(self._info.request.launch.submitted, STOP)
        while not file.exists():
            time.sleep(_STOP_POLL)
        if not self._stopping:
            os.kill(os.getpid(), _POLITE)

    def _relay(self) -> None:
        wait = partial(self._scheduler.wait, self._app_id)
        relay_logs(self._record(), True, wait, self._show, self._since)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if signum == _POLITE and self._stopping:
            return  # it was requested twice, by signal and by file
        if signum not in WARNINGS:
            ends = signal.SIGTERM if signum == _POLITE else signum
            super()._on_signal(ends, frame)
        elif not self._warned.is_set():
            self._warned.set()
            threading.Thread(target=self._leave_in_time, daemon=True).start()

    def _stop(self, signum: int) -> None:
        """Stop the job for good: it is not queued again, saved or not."""
        self._saved = False
        if not is_over(self._info.request.launch.deadline):
            super()._stop(signum)
            return
        self._stopping, self._stopped_by = True, signum
        self._scheduler.stop(self._app_id, TIME_LIMIT, signum)

    def _leave_in_time(self) -> None:
        """Save a checkpoint and end the ranks."""
        if not self._requeue:
            say("the time limit is near, and the engine cannot queue the job again")
            return
        try:
            step = self._checkpoint()
        except LoomError as error:
            say(f"the time limit is near, but saving failed: {error}; running on to the limit")
            return
        say(f"the time limit is near: saved at step {step}, to be queued again")
        self._saved = True
        self._scheduler.stop(self._app_id, REASON)

    def _checkpoint(self) -> int:
        outcome = self._asked()
        made = outcome.get("checkpoint") or {}
        if made.get("state") != "committed":
            raise Failure(str(made.get("reason") or f"it is {outcome['state']}"))
        return int(made["step"])

    def _asked(self) -> dict[str, Any]:
        """Request a checkpoint from the job's plane: this host's, or the remote one."""
        from torchloom.client import plane, served

        far = None if plane.door().exists() else served.client()
        if far is not None:
            with far:
                return far.command(self._app_id, "checkpoint", reason=_WHY, wait=60.0)
        outcome: dict[str, Any] = plane.ask("checkpoint", None, job=self._app_id, reason=_WHY)
        return outcome

    def queue_again(self) -> None:
        """Queue the job again if it was saved, and wait until the engine ends this process."""
        if not self._saved or self._record().reason != REASON:  # it ended by itself
            return
        done = subprocess.run(self._requeue, capture_output=True, text=True, check=False)
        if done.returncode:
            say(f"cannot queue the job again: {done.stderr.strip() or done.stdout.strip()}")
            return
        threading.Event().wait(60)  # the engine ends this process


def main(argv: list[str] | None = None) -> int:
    """Run the job of a folder to its end; return its exit code."""
    (folder,) = map(Path, argv if argv is not None else sys.argv[1:])
    try:
        parcel = Parcel.read(folder)
        return _run(parcel, folder)
    except LoomError as error:
        say(str(error))
        _write_end(folder, AppState.FAILED, str(error))
        return error.exit_code


def _run(parcel: Parcel, folder: Path) -> int:
    env = environment()
    run_id = _run_id(parcel, env)
    job = env.get(parcel.job_variable, "")
    world = find_world(env, host_name())
    scheduler, runner = create_scheduler(parcel.session), get_runner(parcel.session)
    app = _named(app_from_dict(parcel.app), job or run_id)
    again = _settled(run_id, parcel, folder, job)
    cfg = {**parcel.cfg, "id": run_id, "cwd": parcel.cwd, "resume": again}
    info = scheduler.submit_dryrun(app, cfg)
    launch_request = replace(spread(info.request.launch, world, app), submitted=str(folder))
    info.request = replace(info.request, launch=launch_request)
    for note in info.request.launch.notes:
        say(note)
    for name in (END, STOP):
        (folder / name).unlink(missing_ok=True)
    show = Display("[rank{rank}]: ", "[rank{rank}]: ")
    ranks = sum(role.total for role in info.request.launch.roles)
    request = TargetRequest(words=(parcel.run_id,), kind=TargetKind.COMMAND, processes=ranks)
    requeue = (*parcel.requeue, job) if parcel.requeue and job else ()
    launch = TimedLaunch(runner, scheduler, request, info, show, requeue)
    with _watched():
        code = launch.follow()
    launch.queue_again()
    record = catalog.record(run_id)
    if record is not None:
        _write_end(_place(folder, parcel, env), record.state, record.reason)
    return code


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """Use the plane that serves this state folder, if there is one; else start one for the job. It
    ends with the last job that uses it, unless `loom up` started it."""
    from torchloom.client import plane, served

    if not wants_plane():
        yield
        return
    if plane.find() is None and served.found() is not None:
        try:
            plane.find_or_start(only="agent")
        except LoomError as error:
            say(f"{error}; starting a plane for this job")
    over = threading.Event()
    threading.Thread(target=_keep_watched, args=(over,), daemon=True).start()
    try:
        yield
    finally:
        over.set()
    with contextlib.suppress(LoomError):
        found = plane.find()
        if found and not found["pinned"] and all(record.is_over() for record in _here()):
            plane.leave()


def _keep_watched(over: threading.Event) -> None:
    """Keep a plane running as long as the job: another job's plane may end with that job."""
    from torchloom.client import plane, served

    pause = _PLANE_POLL
    while not over.wait(pause):
        with contextlib.suppress(LoomError, OSError):
            if plane.find() is not None:
                pause = _PLANE_POLL
            elif not over.is_set():
                options = {"only": "agent"} if served.found() is not None else {}
                plane.find_or_start(wait=False, **options)
                pause = min(2 * pause, _LONGEST_PAUSE)  # back off if none can start


def _here() -> list[RunRecord]:
    return [record for record in catalog.records() if record.host == host_name()]


def _run_id(parcel: Parcel, env: Mapping[str, str]) -> str:
    """Return the id of the run; each task of an array has its own."""
    task = env.get(parcel.task_variable, "") if parcel.task_variable else ""
    return f"{parcel.run_id}-{task}" if task else parcel.run_id


def _place(folder: Path, parcel: Parcel, env: Mapping[str, str]) -> Path:
    """Return the folder for the end file; each task of an array has its own."""
    task = env.get(parcel.task_variable, "") if parcel.task_variable else ""
    return folder / f"task-{task}" if task else folder


def _settled(run_id: str, parcel: Parcel, folder: Path, job: str) -> bool:
    """Tell whether the run had an earlier attempt, and check that none is still running.

    An attempt that the engine killed may not have recorded its end.
    """
    record, index = catalog.record(run_id), Index(parcel.engine)
    before = [entry for entry in index.all() if entry.run_id == parcel.run_id and entry.job != job]
    if record is not None and not record.is_over():
        scheduler = get_runner(parcel.session).scheduler(parcel.engine)
        assert isinstance(scheduler, BatchScheduler)
        if busy := [entry.job for entry in before if not scheduler.is_over(entry.job)]:
            raise UserError(
                f"{run_id} is already running in job {busy[0]}; `loom stop {busy[0]}` stops it"
            )
        RunFolder.named(run_id).write_record(replace(record.lost(), ended_at=now()))
        catalog.note_resumed(run_id)
    if job and run_id == parcel.run_id and index.get(job) is None:  # it was submitted by hand
        index.add(entry_of(parcel, folder, job))
    return record is not None


def _named(app: AppDef, job: str) -> AppDef:
    """Return the app with the macro for the job id replaced by the engine's id."""

    def fill(value: Any) -> Any:
        if isinstance(value, str):
            return _APP_ID.sub(lambda found: found[0] if found[0] == "$$" else job, value)
        if isinstance(value, dict):
            return {key: fill(inner) for key, inner in value.items()}
        return [fill(inner) for inner in value] if isinstance(value, list) else value

    roles = [
        replace(r, args=fill(r.args), env=fill(r.env), metadata=fill(r.metadata)) for r in app.roles
    ]
    return replace(app, roles=roles)


def spread(request: LaunchRequest, world: World, app: AppDef) -> LaunchRequest:
    """Return a request spread over all hosts of an allocation, one replica each."""
    hosts = world.hosts or (host_name(),)
    replicas = sum(len(role.replicas) for role in request.roles)
    if replicas == 1 and len(hosts) == 1:
        return request
    if len(set(hosts)) < len(hosts):
        raise UserError("the engine placed two replicas on one host; request exclusive hosts")
    roles = tuple(_elastic(role, app) for role in request.roles)
    if replicas > len(hosts):
        roles = _fewer(roles, replicas, len(hosts))
    roles = tuple(_first_host(role, hosts[0]) for role in roles)
    if len(hosts) == 1:
        return replace(request, roles=roles)
    here = site.here()
    carrier = AgentCarrier(
        launcher=_launcher(world, len(hosts)),
        world=asdict(world),
        flags=here.flags,
        cpu_bind=here.cpu_bind,
        env=dict(here.env),
    )
    return replace(request, roles=roles, nodes=hosts, carrier=carrier)


def _launcher(world: World, hosts: int) -> str:
    from torchloom.cli.launch import has, mpiexec_version

    is_asked = world.flavour in ("pbs", "lsf", "pals") and has("mpiexec")
    return choose_launcher(world, max(2, hosts), has, mpiexec_version() if is_asked else "")


def _elastic(role: RoleRequest, app: AppDef) -> RoleRequest:
    """Return a role with its minimum size, so that it can continue with fewer hosts."""
    least = next(r.min_replicas for r in app.roles if r.name == role.name)
    if role.distributed and least is not None and least < len(role.replicas):
        return replace(role, min_group=max(1, least))
    return role


def _fewer(roles: tuple[RoleRequest, ...], replicas: int, hosts: int) -> tuple[RoleRequest, ...]:
    """Return the only role with as many replicas as the engine had hosts for."""
    role = roles[0]
    least = role.min_group or role.min_replicas or replicas
    if len(roles) > 1 or hosts < least:
        raise UserError(f"{replicas} replicas need one host each; the engine gave {hosts}")
    return (replace(role, replicas=role.replicas[:hosts]),)


def _first_host(role: RoleRequest, host: str) -> RoleRequest:
    """Set the first host in every replica's environment; ranks of a group find it themselves."""
    if role.distributed:
        return role
    first = {RANK0_VARIABLE: host}
    replicas = tuple(replace(each, env={**first, **each.env}) for each in role.replicas)
    return replace(role, replicas=replicas)


def _write_end(folder: Path, state: AppState, reason: str) -> None:
    try:
        folder.mkdir(exist_ok=True)
        end = {"state": state.name, "reason": reason, "time": now()}
        write_private(folder / END, json.dumps(end))
    except OSError as error:  # the engine knows the exit code all the same
        say(f"cannot write {folder / END}: {error}")


if __name__ == "__main__":
    _code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_code)
