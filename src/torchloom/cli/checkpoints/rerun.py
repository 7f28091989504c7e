"""Run a job's program again for a stretch of its steps, as a run of its own without a trace."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchloom import settings
from torchloom.errors import Failure, UserError
from torchloom.launch.records import catalog
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.request import LaunchRequest, RoleRequest
from torchloom.launch.variables import JOB_VARIABLE
from torchloom.schedulers.local_scheduler import LocalRequest, create_scheduler
from torchloom.specs.api import AppDryRunInfo, AppState

_LATER = "1"  # a generation after the first is told of the changes of knobs
_LONG = 3600.0


class NotReplayed(Failure):
    """The program could not be run again."""

    code = "not_replayed"


def again(
    request: LaunchRequest, app_id: str, world_size: int, variables: Mapping[str, str]
) -> LaunchRequest:
    """Return a request for the same program under another id; it saves nothing, and fails once."""
    if request.carrier is not None or request.nodes:
        raise UserError(f"{request.app_id} ran on other hosts; a replay runs on this one alone")
    roles = tuple(
        replace(
            role,
            max_retries=0,
            workspace=None,  # the copy that the job made for itself is still where it was
            replicas=tuple(
                replace(one, env={**one.env, **variables}) for one in _fitted(role, world_size)
            ),
            ranks=world_size if role.distributed else role.ranks,
            uneven=(),
        )
        for role in request.roles
    )
    return replace(
        request,
        app_id=app_id,
        run_id="",
        log_dir=str(settings.runs_dir() / app_id / "logs"),
        roles=roles,
        copies="",
        policy={"recovery": "restart"},  # no plane watches it
        checkpoints="",
        saves=False,
        backoff=0.0,
        attempt=0,
        generation=0,
        resume_from=None,
        until=None,
        own_end=None,
    )


def _fitted(role: RoleRequest, world_size: int) -> tuple[Any, ...]:
    """Return the replicas of a role whose ranks are as many as saved the checkpoint."""
    if not role.distributed:
        if world_size != 1:
            raise UserError(f"role {role.name} is no group of {world_size} ranks")
        return role.replicas
    if len(role.replicas) > 1:
        raise UserError(f"role {role.name} ran on several hosts; a replay runs on one alone")
    return role.replicas


@contextlib.contextmanager
def running(job: str, request: LaunchRequest, keep: bool) -> Iterator[None]:
    """Run the request to its end; within, its folder is there; afterwards nothing of it is.

    One that failed is left, so that its logs can be read.
    """
    scheduler = create_scheduler("torchx")
    app = RunFolder.named(job).app()
    info = AppDryRunInfo(LocalRequest(request, app), str)
    try:
        with _as_part_of(job):
            scheduler.start(info).close()
        while not scheduler.wait(request.app_id, _LONG):
            pass
        _check(request.app_id)
        yield
        if not keep:
            scheduler.delete(request.app_id)
    except BaseException:
        scheduler.stop(request.app_id, at_once=True)
        raise


def _check(app_id: str) -> None:
    record = catalog.record(app_id)
    if record is None or record.state is not AppState.SUCCEEDED:
        why = record.reason if record else "its record is gone"
        raise NotReplayed(
            f"the program failed when it was run again: {why}; `loom logs {app_id}` shows it, "
            f"`loom rm {app_id}` removes that run"
        )


@contextlib.contextmanager
def _as_part_of(job: str) -> Iterator[None]:
    """Have what is started belong to a job: no plane lists it, takes it over or comes up for it."""
    before = settings.environment()
    settings.replace_environment({**before, JOB_VARIABLE: job, "LOOM_PLANE": "0"})
    try:
        yield
    finally:
        settings.replace_environment(before)


def variables(place: str, until: int, digests: Path, agent: Path) -> dict[str, str]:
    """Return what ranks are told so that they train a stretch again and note every tensor."""
    return {
        "LOOM_RESUME": place,
        "LOOM_UNTIL": str(until),
        "LOOM_DIGESTS": str(digests),
        "LOOM_AGENT": str(agent),
        "LOOM_GENERATION": _LATER,
    }


def new_id(job: str) -> str:
    """Return an id that says what it repeats."""
    return f"{job[:100]}-replay-{os.urandom(3).hex()}"
