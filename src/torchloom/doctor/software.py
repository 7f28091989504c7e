"""Which Python and which torch a job started here would get, without importing either."""

import json
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata, util
from subprocess import SubprocessError

from torchloom.doctor.findings import CheckFinding, HostPlace, note, ok, problem, why
from torchloom.launch.assembly import mpiexec_kind

_PATIENCE = 15.0
_WHOSE = {"mpirun": "Open MPI", "mpich": "MPICH", "pals": "PALS"}
PATIENCE = 120.0  # a first import from a network file system takes long
_LOOK = """
import json, torch
import torch.distributed as dist
there = dist.is_available()
names = ("gloo", "nccl", "xccl", "mpi")
backends = [name for name in names if there and dist.is_backend_available(name)]
counts = {}
for kind in ("cuda", "xpu"):
    module = getattr(torch, kind, None)
    if module is not None and module.is_available():
        counts[kind] = module.device_count()
print(json.dumps({"version": torch.__version__, "backends": backends, "devices": counts}))
"""
OLDEST = (3, 11)
OLDEST_TORCH = (2, 4)


def mpi(place: HostPlace) -> Iterator[CheckFinding]:
    """Ask `mpiexec`, else `mpirun`, for its version; none is no fault."""
    path = place.env.get("PATH")
    for name in ("mpiexec", "mpirun"):
        if shutil.which(name, path=path):
            yield _look(place, name)
            return
    yield ok("mpi", "none on PATH; only --launcher mpiexec and mpirun need it")


def _look(place: HostPlace, name: str) -> CheckFinding:
    try:
        version = place.ask([name, "--version"], _PATIENCE)
    except (OSError, SubprocessError) as error:
        remedy = "fix it, take it off PATH, or launch with --launcher ssh"
        return note("mpi", f"{name} --version: {why(error)}", remedy)
    first = next(iter(version.strip().splitlines()), "").strip()
    whose = _WHOSE[mpiexec_kind(version)]
    return ok("mpi", f"{name} of {whose}" + (f" ({first})" if first else ""))


def backends(place: HostPlace) -> Iterator[CheckFinding]:
    """Import torch as a rank would, and report its backends."""
    if util.find_spec("torch") is None:
        return
    try:
        found = json.loads(place.ask([sys.executable, "-c", _LOOK], PATIENCE))
    except (OSError, SubprocessError, ValueError) as error:
        remedy = f"`{sys.executable} -c 'import torch'` must work; install torch again"
        yield problem("backends", f"torch: {why(error)}", remedy)
        return
    yield from _judge(place, found["backends"], found["devices"])


def _judge(place: HostPlace, names: list[str], counts: dict[str, int]) -> Iterator[CheckFinding]:
    text = ", ".join(names) or "none"
    text += "".join(f"; {count} {kind}" for kind, count in counts.items())
    wanted = place.env.get("TORCH_BACKEND", "").lower()
    if not names:
        remedy = "install a torch built with distributed; the wheels of pytorch.org are"
        yield problem("backends", "this torch has no collectives", remedy)
    elif wanted and wanted not in names:
        remedy = f"unset TORCH_BACKEND, or choose one of {', '.join(names)}"
        yield problem("backends", f"TORCH_BACKEND={wanted}, but torch has {text}", remedy)
    elif not counts and any((place.root / "dev").glob("nvidia[0-9]*")):
        remedy = "install the CUDA build of torch, or a driver that is new enough for it"
        yield note("backends", f"{text}; torch sees none of the devices", remedy)
    else:
        yield ok("backends", text)


def python(place: HostPlace) -> Iterator[CheckFinding]:
    """Report the version and path of the interpreter that ranks get by default."""
    text = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info >= OLDEST:
        yield ok("python", text)
    else:
        yield problem("python", text, f"use Python {OLDEST[0]}.{OLDEST[1]} or newer")


def torch(place: HostPlace) -> Iterator[CheckFinding]:
    """Report the version of torch; it is not needed to submit, so its absence is no problem."""
    if util.find_spec("torch") is None:
        yield note("torch", "not installed", "to train here: pip install torchloom[torch]")
        return
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:  # a build on PYTHONPATH
        yield ok("torch", "installed, without a version")
        return
    if _numbers(version) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        yield note("torch", f"{version} is old", f"pip install 'torch>={oldest}'")
    else:
        yield ok("torch", version)


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.partition("+")[0].split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())
