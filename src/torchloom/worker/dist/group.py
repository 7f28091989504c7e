"""Start the process group on the wished backend, or all ranks together on gloo; end it safely."""

import gc
import logging
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torchloom.worker.dist.device import missing_backend
from torchloom.worker.dist.fallback import ADVICE, BackendFailed, after_backend_failure
from torchloom.worker.dist.place import Place
from torchloom.worker.dist.store import Store, apart, exchange, start

log = logging.getLogger(__name__)

# What of a DDP module holds the process group, and with it gloo's threads.
_HOLDS_GROUP = ("reducer", "logger", "process_group", "device_mesh")


def start_group(
    store: Store,
    place: Place,
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


def _start_gloo(store: Store, place: Place, timeout: timedelta) -> None:
    error = _start(apart("gloo", store), place, "gloo", torch.device("cpu"), timeout)
    if error:
        after_backend_failure("gloo", error)


def _start(
    store: Store, place: Place, backend: str, device: torch.device, timeout: timedelta
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


def _first_problem(store: Store, topic: str, place: Place, mine: str, backend: str) -> str:
    """Return what the first rank in trouble reported; nothing when all are fine."""
    try:
        told = exchange(store, topic, place, mine)
    except RuntimeError as silence:
        raise BackendFailed(backend, mine or str(silence), ADVICE.get(backend, ())) from silence
    return next((f"rank {rank}: {word}" for rank, word in enumerate(told) if word), "")
