"""Join the ranks of a job under any launcher, and leave them again."""

import atexit
import gc
import logging
import os
import random
import sys
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torchloom.errors import Failure, UserError, shorten
from torchloom.launch.environments import find_world
from torchloom.launch.host.identity import boot_id, host_name
from torchloom.specs.dataclass import dataclass
from torchloom.worker import environment
from torchloom.worker.dist import parallelism
from torchloom.worker.dist.device import (
    get_torch_backend,
    get_torch_device,
    missing_backend,
    use_device,
)
from torchloom.worker.dist.place import RankPlace, here, place_of, settle
from torchloom.worker.dist.stores import (
    MeetingPlace,
    RankStore,
    apart,
    exchange,
    meeting_of,
    open_store,
    start,
)

# Attributes of a DDP module that hold the process group, and with it gloo's threads.
_HOLDS_GROUP = ("reducer", "logger", "process_group", "device_mesh")
TIMEOUT = 3600.0  # seconds; a collective that takes longer fails

ADVICE: Mapping[str, tuple[str, ...]] = {
    "nccl": (
        "check the driver with `nvidia-smi` on every host",
        "load the CUDA modules that torch was built for",
        "NCCL_DEBUG=INFO shows which interface it tried; NCCL_SOCKET_IFNAME chooses one",
    ),
    "xccl": (
        "load the oneAPI and frameworks modules of this site",
        "check that `sycl-ls` lists the devices and ZE_AFFINITY_MASK does not hide them",
    ),
    "ccl": ("load the oneAPI modules; oneccl_bindings_for_pytorch must match this torch",),
    "mpi": ("this torch must be built with MPI; most wheels are not",),
}
ANY = ("GLOO_SOCKET_IFNAME chooses the interface that gloo uses",)


@dataclass(frozen=True, slots=True)
class Fallback:
    """The backend to use instead, and advice for the user."""

    backend: str
    advice: tuple[str, ...]


class BackendFailed(Failure):
    """The backend did not start, and no other may be used."""

    code = "backend_failed"

    def __init__(self, backend: str, error: str, advice: tuple[str, ...]) -> None:
        self.backend = backend
        super().__init__("; ".join([f"backend {backend} did not start: {error}", *advice]))


def after_backend_failure(backend: str, error: str, fallback: bool = True) -> Fallback:
    """Return gloo and what to check; gloo's own failure, or `--no-fallback`, is final."""
    advice = ADVICE.get(backend, ANY)
    if not fallback or backend == "gloo":
        raise BackendFailed(backend, error, advice)
    note = f"backend {backend} did not start ({error}): using gloo instead, for debugging only"
    refuse = "--no-fallback, or LOOM_NO_FALLBACK=1 in the ranks, refuses instead"
    return Fallback("gloo", (note, *advice, refuse))


def seed_everything(seed: int) -> None:
    """Seed `random`, torch on all devices, and numpy if it is imported."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)  # it takes no larger one


log = logging.getLogger(__name__)


def start_group(
    store: RankStore,
    place: RankPlace,
    backend: str,
    device: torch.device,
    timeout: timedelta,
    fallback: bool,
) -> str:
    """Start the default group and return its backend. All ranks agree on the backend."""
    if backend == "gloo":
        _start_gloo(store, place, timeout)
        return backend
    wrong = _first_problem(store, "can", place, missing_backend(backend), backend)
    if not wrong:
        error = _start(apart(backend, store), place, backend, device, timeout)
        wrong = _first_problem(store, "did", place, error, backend)
    if not wrong:
        return backend
    stop_group()
    instead = after_backend_failure(backend, wrong, fallback)
    if place.rank == 0:
        log.warning("; ".join(instead.advice))
    _start_gloo(store, place, timeout)
    return instead.backend


def stop_group() -> None:
    """Destroy the group, after DDP modules have dropped it.

    gloo joins its threads when the last reference is freed. If a dying module frees it, the GIL is
    held, and the threads never end.
    """
    if not dist.is_initialized():
        return
    for module in _living_ddp_modules():
        for name in _HOLDS_GROUP:
            module.__dict__.pop(name, None)
    gc.collect()
    dist.destroy_process_group()


def _living_ddp_modules() -> list[DistributedDataParallel]:
    """Return every DDP module of this process."""
    found = (each for each in gc.get_objects() if issubclass(type(each), DistributedDataParallel))
    return list(found)


def _start_gloo(store: RankStore, place: RankPlace, timeout: timedelta) -> None:
    error = _start(apart("gloo", store), place, "gloo", torch.device("cpu"), timeout)
    if error:
        after_backend_failure("gloo", error)


def _start(
    store: RankStore, place: RankPlace, backend: str, device: torch.device, timeout: timedelta
) -> str:
    """Start a group and reduce one number in it; return the error, if any."""
    plain_accelerator = device.type in ("cuda", "xpu") and ":" not in backend and backend != "gloo"
    try:
        start(backend, store, place, timeout, device if plain_accelerator else None)
        if backend != "gloo":
            dist.all_reduce(torch.ones(1, device=device))
    except (RuntimeError, ValueError) as error:  # torch's own errors are of the first kind
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return ""


def _first_problem(store: RankStore, topic: str, place: RankPlace, mine: str, backend: str) -> str:
    """Return the problem of the first rank that has one; empty if none has."""
    try:
        problems = exchange(store, topic, place, mine)
    except RuntimeError as silence:
        raise BackendFailed(backend, mine or str(silence), ADVICE.get(backend, ())) from silence
    return next((f"rank {rank}: {word}" for rank, word in enumerate(problems) if word), "")


class BadTimeout(UserError):
    """The timeout is not a number of seconds."""

    code = "bad_timeout"


class _Met:
    """The store that this process used for its rendezvous, and how often."""

    store: RankStore | None = None
    meeting: MeetingPlace | None = None
    times = 0
    pid = 0  # a fork has the group's sockets but not its threads: it must not end it


def setup_torch(
    port: int | None = None,
    seed: int | None = None,
    timeout: float | timedelta | None = None,
    verbose: bool = False,
    *,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    context_parallel_size: int = 1,
    backend: str | None = None,
    device_id: int | None = None,
    fallback: bool | None = None,
) -> int:
    """Join the other ranks under any launcher, and return this process' rank.

    Ranks are found from the variables of loom, torchrun, Slurm, MPI, PALS and LSF. A process
    without a launcher is rank 0 of 1, without a process group. A second call, or one after
    `init_process_group`, only returns the rank.

    Args:
        port: The port of the rendezvous, if MASTER_PORT is not set.
        seed: Seed `random`, torch and numpy with `seed + rank`.
        timeout: Seconds that a collective may take; else `TORCH_DDP_TIMEOUT`, else an hour.
        verbose: Log the result on every rank, not only on rank 0.
        tensor_parallel_size, pipeline_parallel_size, context_parallel_size: With a size other than
            1, `get_mesh()` returns the device mesh.
        backend: Instead of `TORCH_BACKEND` or the device's own.
        device_id: The index of the device, instead of the local rank.
        fallback: False fails if the backend does not start; by default gloo replaces it, unless
            `LOOM_NO_FALLBACK=1` is set.

    Raises:
        BadTimeout: The timeout is not a positive number.
        NoMeetingPoint: Ranks are on several hosts, and the address of rank 0 is not known.
        RanksMissing: Not all ranks came to the rendezvous in time.
        BackendFailed: The backend did not start.

    Example:
        >>> rank = setup_torch(seed=1234)
        >>> device = get_torch_device()
    """
    if dist.is_initialized():
        settle(_place_in_group())
    else:
        wait = wait_of(environment.variables(), timeout)
        may_fall = fallback
        if may_fall is None:
            may_fall = not environment.is_on(environment.NO_FALLBACK_VARIABLE)
        _join(port, wait, backend, device_id, may_fall, verbose)
    place = here()
    sizes = {"tp": tensor_parallel_size, "pp": pipeline_parallel_size, "cp": context_parallel_size}
    if any(size != 1 for size in sizes.values()):
        parallelism.make_mesh(**sizes)
    if seed is not None:
        seed_everything(seed + place.rank)
    return place.rank


def cleanup() -> None:
    """Destroy the process group. DDP modules of it stop working; the wrapped modules do not.

    It does nothing without a process group.
    """
    parallelism.forget_mesh()
    stop_group()
    settle(None)


def _at_exit() -> None:
    if _Met.pid == os.getpid():
        cleanup()


def wait_of(env: Mapping[str, str], timeout: float | timedelta | None) -> timedelta:
    """Return the timeout of collectives."""
    if isinstance(timeout, timedelta):
        return timeout
    text = str(env.get("TORCH_DDP_TIMEOUT") or TIMEOUT) if timeout is None else str(timeout)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise BadTimeout(f"timeout {shorten(text)!r}: give seconds, in TORCH_DDP_TIMEOUT too")
    return timedelta(seconds=seconds)


def _join(
    port: int | None,
    timeout: timedelta,
    backend: str | None,
    device_id: int | None,
    fallback: bool,
    verbose: bool,
) -> None:
    env = environment.variables()
    world = find_world(env, host_name())
    place = place_of(world, env)
    if place.world_size > 1:
        meeting = meeting_of(world, env, place, host_name(), port)
        store = _meet(meeting, place, timeout)
        place = _learn(store, place)
        environment.export(place.variables)
    settle(place)
    device = get_torch_device()
    if device_id is not None and device.type in ("cuda", "xpu"):
        device = torch.device(device.type, device_id)
    use_device(device)
    used = "none"
    if place.world_size > 1:
        wanted = (backend or get_torch_backend()).lower()
        used = start_group(store, place, wanted, device, timeout, fallback)
        _Met.pid = os.getpid()
        atexit.unregister(_at_exit)
        if used == "gloo":  # its threads may abort an interpreter at its exit
            atexit.register(_at_exit)
    level = logging.INFO if verbose or place.rank == 0 else logging.DEBUG
    log.log(level, "rank %d of %d: %s, %s", place.rank, place.world_size, device, used)


def _meet(meeting: MeetingPlace, place: RankPlace, timeout: timedelta) -> RankStore:
    """Return a part of the store that no earlier group or attempt has used.

    Rank 0 may serve the store, so the store outlives the group: a second server at the same port
    would get peers that are still connected to the first.
    """
    if _Met.store is None or meeting.port is None or _Met.meeting != meeting:
        _Met.store = open_store(meeting, place, timeout)
        _Met.meeting = MeetingPlace(meeting.address, int(environment.text("MASTER_PORT")))
        _Met.times = 0
    _Met.times += 1
    attempt = environment.text("TORCHELASTIC_RESTART_COUNT", "0")
    return apart(f"loom/{attempt}/{_Met.times}", _Met.store)


def _learn(store: RankStore, place: RankPlace) -> RankPlace:
    """Exchange the hosts of all ranks, if the launcher left a number out."""
    wholes = exchange(store, "whole", place, "yes" if place.is_whole else "")
    if all(wholes):
        return place
    return place.among(exchange(store, "hosts", place, f"{host_name()} {boot_id()}"))


def _place_in_group() -> RankPlace:
    """Return the place in an existing process group."""
    place = here()
    rank, size = dist.get_rank(), dist.get_world_size()
    if (place.rank, place.world_size) == (rank, size):
        return place
    return RankPlace(rank, size, place.local_rank, place.local_world_size, None, None)
