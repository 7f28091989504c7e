"""Start and end a job's run: what the coordinator needs of the world, and how a runner gives it."""

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from torchloom import settings
from torchloom.components.job import app_of
from torchloom.errors import UserError
from torchloom.launch.host.identity import host_name
from torchloom.launch.records import catalog
from torchloom.launch.records.folder import RunFolder, StateNotWritable
from torchloom.launch.records.record import LAUNCHER_LOST
from torchloom.launch.records.resumption import Continuation
from torchloom.runner.api import Runner, get_runner
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


def job_environment(
    env: Mapping[str, str], hosts: Iterable[str] = (), store: str = ""
) -> dict[str, str]:
    """Return what a job of the queue has of the plane's environment: what is listed, no secrets.

    The plane's own variables are those of the shell it was started from, and a job may be another
    person's. What it needs besides is in its spec. `hosts` are where it goes: ssh must get there.
    `store` is where its checkpoints go: to one in S3 all of its processes need the plane's keys.
    """
    found = {name: value for name, value in env.items() if _is_for_jobs(name, value)}
    if _SSH in env and set(hosts) - {host_name()}:
        found[_SSH] = env[_SSH]
    if any(place.startswith(_S3) for place in (store, env.get("LOOM_CHECKPOINTS", ""))):
        found |= {name: value for name, value in env.items() if name.startswith("AWS_")}
    return found


def _is_for_jobs(name: str, value: str) -> bool:
    if name.lower() in _PROXIES:
        return "@" not in value  # no password
    is_listed = name in _FOR_JOBS or name.startswith(_FOR_JOBS_PREFIXES)
    return is_listed and not _SECRET.search(name)


_SSH = "SSH_AUTH_SOCK"
_S3 = "s3://"
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
_FOR_JOBS = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM"),
        *("XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOSTNAME"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "CPATH", "VIRTUAL_ENV", "NO_COLOR"),
        *("BASH_ENV", "MODULEPATH", "MODULESHOME", "LOADEDMODULES", "_LMFILES_"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "RES_OPTIONS"),
        *("HF_HOME", "HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM"),
        *("LOOM_HOME", "LOOM_PLANE", "LOOM_PLANE_IDLE", "LOOM_WARM", "LOOM_WARM_IDLE"),
        *("LOOM_ATTACH", "LOOM_CHECKPOINTS", "LOOM_HANG", "LOOM_HANG_LIMIT", "LOOM_DEVICES"),
        *("LOOM_DIGESTS", "LOOM_LEDGER", "LOOM_MODULES", "LOOM_SSH", "LOOM_TORCHRUN"),
        *("LOOM_DEADLINE", "LOOM_CHECKPOINT_MARGIN", "LOOMCONFIG", "TORCHXCONFIG"),
    )
)
_FOR_JOBS_PREFIXES = (
    *("LC_", "PYTHON", "CONDA_", "LMOD_", "TORCH", "PYTORCH_", "TRITON_", "XLA_"),
    *("CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "UCX_", "UCC_", "FI_", "IBV_", "HIP_", "ROCR_", "HSA_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "MALLOC_", "THP_"),
    *("SLURM", "PBS_", "LSB_", "LSF_", "PALS_", "PMI", "OMPI_", "MPICH_", "HYDRA_"),
)
_SECRET = re.compile(r"(?i)token|secret|passw(or)?d|credential|jwt|cookie|(api|access|auth)_?key")


class RunnerLauncher:
    """Runs of this state folder, by way of a runner; they have what is listed of our variables."""

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
        runner = _runner((spot.host for spot in order.spots), spec.checkpointing.store)
        runner.run(app, spec.scheduler, options(spec, order))

    def resume(self, job: str, asked: Continuation) -> None:
        store = RunFolder.named(job).request().checkpoints
        scheduler = _runner(store=store).scheduler(LOCAL[0])
        assert isinstance(scheduler, LocalScheduler)
        scheduler.resume(job, asked)

    def stop(self, job: str, reason: str) -> None:
        scheduler = _runner().scheduler(LOCAL[0])
        assert isinstance(scheduler, LocalScheduler)
        scheduler.stop(job, reason, at_once=True)


def _runner(hosts: Iterable[str] = (), store: str = "") -> Runner:
    return get_runner(inherited=job_environment(settings.environment(), hosts, store))


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
