"""The job inside an engine's allocation: what the script of a submitted job executes.

It is a launch like any other, over the allocation's hosts: agents by the engine's own launcher, a
plane on this host unless there is one, logs and record in the run's folder. In addition it knows
that time runs out, and leaves word of its end for when the engine has forgotten the job.
"""

import contextlib
import json
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torchloom.cli import site
from torchloom.cli.deadline import TimedLaunch
from torchloom.cli.output import say
from torchloom.cli.target import Kind, Request
from torchloom.errors import LoomError, UserError
from torchloom.launch.assembly import choose_launcher
from torchloom.launch.environments import World, find_world
from torchloom.launch.host.identity import host_name
from torchloom.launch.logs.display import Display
from torchloom.launch.records import catalog
from torchloom.launch.records.folder import RunFolder, now
from torchloom.launch.records.parcel import END, STOP, Parcel, write_private
from torchloom.launch.records.record import RunRecord
from torchloom.launch.records.request import AgentCarrier, LaunchRequest, RoleRequest
from torchloom.runner.api import get_runner
from torchloom.schedulers.batch.folder import entry_of
from torchloom.schedulers.batch.index import Index
from torchloom.schedulers.batch.scheduler import BatchScheduler
from torchloom.schedulers.local_request import RANK0_VARIABLE
from torchloom.schedulers.local_scheduler import create_scheduler
from torchloom.settings import environment, wants_plane
from torchloom.specs.api import AppDef, AppState, app_from_dict

_LOOK, _LONGEST_PAUSE = 3.0, 60.0  # seconds between looks whether there is a plane
_APP_ID = re.compile(r"\$\$|\$\{app_id\}|\$app_id(?![A-Za-z0-9_])")


def main(argv: list[str] | None = None) -> int:
    """Run the job of a folder to its end; return its exit code."""
    (folder,) = map(Path, argv if argv is not None else sys.argv[1:])
    try:
        parcel = Parcel.read(folder)
        return _run(parcel, folder)
    except LoomError as error:
        say(str(error))
        _leave_word(folder, AppState.FAILED, str(error))
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
    request = Request(words=(parcel.run_id,), kind=Kind.COMMAND, processes=ranks)
    requeue = (*parcel.requeue, job) if parcel.requeue and job else ()
    launch = TimedLaunch(runner, scheduler, request, info, show, requeue)
    with _watched():
        code = launch.follow()
    launch.queue_again()
    record = catalog.record(run_id)
    if record is not None:
        _leave_word(_place(folder, parcel, env), record.state, record.reason)
    return code


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """Have the ranks seen by the plane that serves this state folder, if one does; else by one that
    comes with the job. It goes with the last job that uses it, unless `loom up` asked for it."""
    from torchloom.client import plane, served

    if not wants_plane():
        yield
        return
    if plane.find() is None and served.found() is not None:
        try:
            plane.find_or_start(only="agent")
        except LoomError as error:
            say(f"{error}; the job has a plane of its own")
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
    """See that there is a plane as long as the job lives: another job's may end with that job."""
    from torchloom.client import plane, served

    pause = _LOOK
    while not over.wait(pause):
        with contextlib.suppress(LoomError, OSError):
            if plane.find() is not None:
                pause = _LOOK
            elif not over.is_set():
                wishes = {"only": "agent"} if served.found() is not None else {}
                plane.find_or_start(wait=False, **wishes)
                pause = min(2 * pause, _LONGEST_PAUSE)  # where none can live, seldom


def _here() -> list[RunRecord]:
    return [record for record in catalog.records() if record.host == host_name()]


def _run_id(parcel: Parcel, env: Mapping[str, str]) -> str:
    """Return the id of the run; each task of an array has its own."""
    task = env.get(parcel.task_variable, "") if parcel.task_variable else ""
    return f"{parcel.run_id}-{task}" if task else parcel.run_id


def _place(folder: Path, parcel: Parcel, env: Mapping[str, str]) -> Path:
    """Return where word of the end is left: only of a job that is no array there is one end."""
    task = env.get(parcel.task_variable, "") if parcel.task_variable else ""
    return folder / f"task-{task}" if task else folder


def _settled(run_id: str, parcel: Parcel, folder: Path, job: str) -> bool:
    """Tell whether the run has had a life before, and see that this is its only one now.

    What the engine has ended need not have been able to write that down.
    """
    record, index = catalog.record(run_id), Index(parcel.engine)
    before = [entry for entry in index.all() if entry.run_id == parcel.run_id and entry.job != job]
    if record is not None and not record.is_over():
        scheduler = get_runner(parcel.session).scheduler(parcel.engine)
        assert isinstance(scheduler, BatchScheduler)
        if busy := [entry.job for entry in before if not scheduler.is_over(entry.job)]:
            raise UserError(
                f"{run_id} is under way in job {busy[0]}; `loom stop {busy[0]}` ends it"
            )
        RunFolder.named(run_id).write_record(replace(record.lost(), ended_at=now()))
        catalog.goes_on(run_id)
    if job and run_id == parcel.run_id and index.get(job) is None:  # it was submitted by hand
        index.add(entry_of(parcel, folder, job))
    return record is not None


def _named(app: AppDef, job: str) -> AppDef:
    """Return the app with its engine's number in place of the macro for it."""

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
    """Return a request for one host as one for all hosts of an allocation, a replica each."""
    hosts = world.hosts or (host_name(),)
    replicas = sum(len(role.replicas) for role in request.roles)
    if replicas == 1 and len(hosts) == 1:
        return request
    if len(set(hosts)) < len(hosts):
        raise UserError("the engine gave two parts of the job one host; ask for exclusive ones")
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
    from torchloom.cli.launching import has, mpiexec_version

    is_asked = world.flavour in ("pbs", "lsf", "pals") and has("mpiexec")
    return choose_launcher(world, max(2, hosts), has, mpiexec_version() if is_asked else "")


def _elastic(role: RoleRequest, app: AppDef) -> RoleRequest:
    """A group that may be smaller goes on with fewer hosts."""
    least = next(r.min_replicas for r in app.roles if r.name == role.name)
    if role.distributed and least is not None and least < len(role.replicas):
        return replace(role, min_group=max(1, least))
    return role


def _fewer(roles: tuple[RoleRequest, ...], replicas: int, hosts: int) -> tuple[RoleRequest, ...]:
    """Return the only role with as many replicas as the engine had hosts for."""
    role = roles[0]
    least = role.min_group or role.min_replicas or replicas
    if len(roles) > 1 or hosts < least:
        raise UserError(f"{replicas} replicas need a host each, the engine gave {hosts}")
    return (replace(role, replicas=role.replicas[:hosts]),)


def _first_host(role: RoleRequest, host: str) -> RoleRequest:
    """Tell every replica where the first one is; ranks of one group know it by themselves."""
    if role.distributed:
        return role
    told = {RANK0_VARIABLE: host}
    replicas = tuple(replace(each, env={**told, **each.env}) for each in role.replicas)
    return replace(role, replicas=replicas)


def _leave_word(folder: Path, state: AppState, reason: str) -> None:
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
