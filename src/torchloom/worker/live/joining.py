"""Meet the members of a new generation in its store, and make their group."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed

from torchloom.worker.live.leaving import Group, NotMet

_dist: Any = torch.distributed  # torch declares no types for its stores
_FILE, _TCP = "file://", "tcp://"
_PAUSE = 0.001  # seconds between two looks for the others
_CONNECT = 10.0  # seconds for members that were all there a moment ago


def never() -> bool:
    """Tell that a generation is not over."""
    return False


def join(
    store: str,
    rank: int,
    world_size: int,
    backend: str,
    timeout: float,
    is_over: Callable[[], bool] = never,
    patience: float = 30.0,
) -> Group:
    """Return the group of all members, once they are there.

    `timeout` is for the group's collectives. Whoever waits for the others asks `is_over` all the
    time: a member that dies on its way never comes.
    """
    found = _store(store, patience)
    _meet(found, rank, world_size, is_over, time.monotonic() + patience)
    words = "cpu:gloo,cuda:nccl" if backend == "nccl" else backend  # states travel over gloo

    def make() -> None:
        _dist.init_process_group(
            words,
            store=found,
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=min(_CONNECT, timeout)),
        )

    try:
        group = Group.opened(make)
    except (RuntimeError, ValueError) as error:
        if _dist.is_initialized():
            _dist.destroy_process_group()
        raise NotMet(f"the members of {store} could not connect: {error}") from error
    _dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout))
    return group


def _store(address: str, patience: float) -> Any:
    limit = timedelta(seconds=patience)
    if address.startswith(_FILE):
        store = _dist.FileStore(address.removeprefix(_FILE), -1)
        store.set_timeout(limit)
        return store
    host, _, port = address.removeprefix(_TCP).rpartition(":")
    try:
        return _dist.TCPStore(
            host.strip("[]"), int(port), is_master=False, wait_for_workers=False, timeout=limit
        )
    except RuntimeError as error:
        raise NotMet(f"no store at {address}: {error}") from error


def _meet(
    store: Any, rank: int, world_size: int, is_over: Callable[[], bool], deadline: float
) -> None:
    """Wait until all members have come to the store."""
    here = [f"here/{each}" for each in range(world_size)]
    try:
        store.set(here[rank], "")
        while not store.check(here):
            if is_over():
                raise NotMet("the generation was over before its members had met")
            if time.monotonic() > deadline:
                raise NotMet("a member did not come to the store")
            time.sleep(_PAUSE)
    except RuntimeError as error:
        raise NotMet(f"the store is gone: {error}") from error
