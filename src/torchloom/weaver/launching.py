"""Start and end a job's run: what the coordinator needs of the world, and how a runner gives it."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from torchloom.components.job import app_of
from torchloom.errors import UserError
from torchloom.launch import catalog
from torchloom.launch.folder import RunFolder, StateNotWritable
from torchloom.launch.lifetimes import Continuation
from torchloom.launch.record import LAUNCHER_LOST
from torchloom.runner.api import get_runner
from torchloom.schedulers import LOCAL
from torchloom.schedulers.local_scheduler import LocalScheduler
from torchloom.specs.api import CfgVal
from torchloom.specs.jobspec import JobSpec, Policy
from torchloom.specs.jobspec_shape import job_from_dict


class Seen(Enum):
    """What there is of a job's run."""

    NOTHING = "nothing"
    MADE = "made"  # by a weaver that may be gone; then it is unmade within moments
    BEGUN = "begun"  # it is somebody's, and nobody else may start it


@dataclass(frozen=True, slots=True)
class Spot:
    """So many workers on a host, with these of its GPUs."""

    host: str
    workers: int
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Order:
    """A job, where it goes, and what its run shall be called."""

    job: str
    spec: Mapping[str, Any]
    spots: tuple[Spot, ...]
    cwd: str = ""
    python: str = ""
    left: int | None = None  # restarts of the last life of its run: it is to go on with that
    step: int | None = None  # from its checkpoint of this step, instead of the newest
    until: int | None = None  # up to this step


class Launcher(Protocol):
    """Whoever starts runs. Everything here may take its time and is done beside the loop."""

    def look(self, job: str, left: int | None = None) -> Seen:
        """Say what there is of a run, beyond a life of it that was left behind."""

    def start(self, order: Order) -> None:
        """Make the run; one that is there cannot be made again, which is an error."""

    def stop(self, job: str, reason: str) -> None:
        """End a run at once; one that is over is left alone."""

    def resume(self, job: str, asked: Continuation) -> None:
        """Have a run that has ended go on, as it was asked for."""


class RunnerLauncher:
    """Runs of this state folder, by way of a runner."""

    def look(self, job: str, left: int | None = None) -> Seen:
        record = catalog.record(job)
        if record is None:
            return Seen.NOTHING
        if left is not None and record.restarts <= left:
            return Seen.NOTHING if record.is_over() else Seen.BEGUN
        folder = RunFolder.named(job)
        if folder.is_agreed(left + 1 if left is not None and left >= 0 else 0):
            return Seen.BEGUN
        if record.started_at is not None:
            return Seen.BEGUN
        if not record.is_over():
            return Seen.MADE
        if left is not None and left >= 0:
            return Seen.NOTHING  # nobody agreed to it, and the run has more lives than this
        if record.reason == LAUNCHER_LOST:  # with whoever wanted it: none of it has ever started
            return Seen.NOTHING if _removed(folder) else Seen.MADE
        return Seen.BEGUN

    def start(self, order: Order) -> None:
        spec = job_from_dict(order.spec)
        _check(spec, order.cwd)
        app = app_of(spec, order.python or sys.executable)
        get_runner().run(app, spec.scheduler, options(spec, order))

    def resume(self, job: str, asked: Continuation) -> None:
        scheduler = get_runner().scheduler(LOCAL[0])
        assert isinstance(scheduler, LocalScheduler)
        scheduler.resume(job, asked)

    def stop(self, job: str, reason: str) -> None:
        scheduler = get_runner().scheduler(LOCAL[0])
        assert isinstance(scheduler, LocalScheduler)
        scheduler.stop(job, reason, at_once=True)


def _removed(folder: RunFolder) -> bool:
    try:
        folder.remove()
    except StateNotWritable:
        return False  # the next look may find a disk that takes it
    return True


def options(spec: JobSpec, order: Order) -> dict[str, CfgVal]:
    """Return the run options of a job: its own, and what was decided for it."""
    policy = {"policy": _policy(spec)} if spec.recovery.policy else {}
    return {
        **spec.options,
        **policy,
        "id": order.job,
        "cwd": order.cwd or os.path.expanduser("~"),
        "hosts": [f"{spot.host}:{spot.workers}" for spot in order.spots],
        "devices": [",".join(spot.gpus) for spot in order.spots],
        **({"resume": True} if order.left is not None and order.left >= 0 else {}),
        **({"resume_from": order.step} if order.step is not None else {}),
        **({"resume_until": order.until} if order.until is not None else {}),
    }


def _policy(spec: JobSpec) -> str:
    assert spec.recovery.policy is not None
    least = spec.elastic.min if spec.elastic else 0
    more = f",min={least}" if least and spec.recovery.policy is Policy.SHRINK else ""
    return f"{spec.recovery.policy.value}{more}"


def _check(spec: JobSpec, cwd: str) -> None:
    """Refuse what is known to fail before anything is started."""
    if cwd and not os.path.isdir(cwd):
        raise UserError(f"no folder {cwd!r} on the host that starts it; submit from one it has")
    path = os.path.join(cwd or os.path.expanduser("~"), spec.script)
    if spec.script and not os.path.isfile(path):
        raise UserError(f"no file {path!r} on the host that starts it; give its whole path")
