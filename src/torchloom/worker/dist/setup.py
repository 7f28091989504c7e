"""Make a process one of the ranks, whatever started it; and let it go again."""

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

from torchloom.errors import UserError, shorten
from torchloom.launch.environments import find_world
from torchloom.launch.host.identity import boot_id, host_name
from torchloom.worker import environment
from torchloom.worker.dist import parallelism
from torchloom.worker.dist.device import (
    get_torch_backend,
    get_torch_device,
    missing_backend,
    use_device,
)
from torchloom.worker.dist.fallback import ADVICE, BackendFailed, after_backend_failure
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

# What of a DDP module holds the process group, and with it gloo's threads.
_HOLDS_GROUP = ("reducer", "logger", "process_group", "device_mesh")
TIMEOUT = 3600.0  # seconds; what a collective may take before it counts as stuck


def seed_everything(seed: int) -> None:
    """Seed `random`, torch on all its devices, and numpy where it is used."""
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
    """Start the default group and return its backend. The ranks agree, so none is left waiting."""
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
    """End the group. DDP modules let go of it first: gloo waits for its threads when the last
    holder dies, and if that is a dying module, while the interpreter's lock is held: for ever.
    """
    if not dist.is_initialized():
        return
    for module in _living_ddp_modules():
        for name in _HOLDS_GROUP:
            module.__dict__.pop(name, None)
    gc.collect()
    dist.destroy_process_group()


def _living_ddp_modules() -> list[DistributedDataParallel]:
    """Return every one there is, whoever made it."""
    found = (each for each in gc.get_objects() if issubclass(type(each), DistributedDataParallel))
    return list(found)


def _start_gloo(store: RankStore, place: RankPlace, timeout: timedelta) -> None:
    error = _start(apart("gloo", store), place, "gloo", torch.device("cpu"), timeout)
    if error:
        after_backend_failure("gloo", error)


def _start(
    store: RankStore, place: RankPlace, backend: str, device: torch.device, timeout: timedelta
) -> str:
    """Start a group and move one number through it; return what went wrong."""
    plain_accelerator = device.type in ("cuda", "xpu") and ":" not in backend and backend != "gloo"
    try:
        start(backend, store, place, timeout, device if plain_accelerator else None)
        if backend != "gloo":
            dist.all_reduce(torch.ones(1, device=device))
    except (RuntimeError, ValueError) as error:  # torch's own errors are of the first kind
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return ""


def _first_problem(store: RankStore, topic: str, place: RankPlace, mine: str, backend: str) -> str:
    """Return what the first rank in trouble reported; nothing when all are fine."""
    try:
        told = exchange(store, topic, place, mine)
    except RuntimeError as silence:
        raise BackendFailed(backend, mine or str(silence), ADVICE.get(backend, ())) from silence
    return next((f"rank {rank}: {word}" for rank, word in enumerate(told) if word), "")


class BadTimeout(UserError):
    """A time to wait that is no number of seconds."""

    code = "bad_timeout"


class _Met:
    """The store where this process met its peers, and how often it set up a group in it."""

    store: RankStore | None = None
    meeting: MeetingPlace | None = None
    times = 0
    pid = 0  # a fork has the group's sockets, but none of its threads: it must not end it


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
    """Join the other ranks and return this one's rank; a process without any is rank 0 of one.

    `port` is used where nobody says MASTER_PORT. `seed` is made different on every rank. `timeout`
    is in seconds, else `TORCH_DDP_TIMEOUT`, else an hour. With parallel sizes, `get_mesh()` has
    the device mesh. `fallback=False`, or `LOOM_NO_FALLBACK=1`, refuses gloo in place of a backend
    that does not start. Calling it again, or after `init_process_group`, changes nothing.
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
    """Leave the group. DDP modules made in it stop working, what they wrap stays whole.

    Calling it twice, or without a group, does nothing.
    """
    parallelism.forget_mesh()
    stop_group()
    settle(None)


def _at_exit() -> None:
    if _Met.pid == os.getpid():
        cleanup()


def wait_of(env: Mapping[str, str], timeout: float | timedelta | None) -> timedelta:
    """Return how long a collective may take."""
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
    spoken = "none"
    if place.world_size > 1:
        wish = (backend or get_torch_backend()).lower()
        spoken = start_group(store, place, wish, device, timeout, fallback)
        _Met.pid = os.getpid()
        atexit.unregister(_at_exit)
        if spoken == "gloo":  # its threads, if left alone, may abort an interpreter that ends
            atexit.register(_at_exit)
    level = logging.INFO if verbose or place.rank == 0 else logging.DEBUG
    log.log(level, "rank %d of %d: %s, %s", place.rank, place.world_size, device, spoken)


def _meet(meeting: MeetingPlace, place: RankPlace, timeout: timedelta) -> RankStore:
    """Return a part of the store that no earlier group of this process, or attempt, has used.

    Rank 0 may be the store's server, so the store outlives the group; a second server at the same
    port would meet peers that still talk to the first.
    """
    if _Met.store is None or meeting.port is None or _Met.meeting != meeting:
        _Met.store = open_store(meeting, place, timeout)
        _Met.meeting = MeetingPlace(meeting.address, int(environment.text("MASTER_PORT")))
        _Met.times = 0
    _Met.times += 1
    attempt = environment.text("TORCHELASTIC_RESTART_COUNT", "0")
    return apart(f"loom/{attempt}/{_Met.times}", _Met.store)


def _learn(store: RankStore, place: RankPlace) -> RankPlace:
    """Ask the peers for their hosts, where the launcher left a number out."""
    wholes = exchange(store, "whole", place, "yes" if place.is_whole else "")
    if all(wholes):
        return place
    return place.among(exchange(store, "hosts", place, f"{host_name()} {boot_id()}"))


def _place_in_group() -> RankPlace:
    """Return the place in a group that is there already, whoever started it."""
    place = here()
    rank, size = dist.get_rank(), dist.get_world_size()
    if (place.rank, place.world_size) == (rank, size):
        return place
    return RankPlace(rank, size, place.local_rank, place.local_world_size, None, None)
