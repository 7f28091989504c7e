"""Torch's stores, for whose names torch declares no types: what ranks agree through."""

import json
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed

from torchloom.worker.dist.place import Place

_torch: Any = torch.distributed


class Store(Protocol):
    """Keys and values that all ranks see; `get` waits for a key until the store's timeout."""

    def set(self, key: str, value: str) -> None:
        """Write a value."""

    def get(self, key: str) -> bytes:
        """Return a value as soon as it is there."""


def rendezvous(place: Place, timeout: timedelta) -> Store:
    """Return the store that `env://` leads to: the launcher's own, or one at MASTER_ADDR."""
    rank, size = place.rank, place.world_size
    found: Store = next(_torch.rendezvous("env://", rank=rank, world_size=size, timeout=timeout))[0]
    return found


def serve(host: str, port: int, fd: int, world_size: int, timeout: timedelta) -> Store:
    """Return a store that this process serves on a listening socket, when all ranks have come."""
    store: Store = _torch.TCPStore(host, port, world_size, True, timeout, master_listen_fd=fd)
    return store


def connect(host: str, port: int, world_size: int, timeout: timedelta) -> Store:
    """Return the store that rank 0 serves."""
    store: Store = _torch.TCPStore(host, port, world_size, False, timeout)
    return store


def apart(name: str, store: Store) -> Store:
    """Return a store within a store, with keys of its own."""
    inner: Store = _torch.PrefixStore(name, store)
    return inner


def alone() -> Store:
    """Return a store within this process."""
    store: Store = _torch.HashStore()
    return store


def start(
    backend: str, store: Store, place: Place, timeout: timedelta, device: torch.device | None = None
) -> None:
    """Start torch's default group; with a device, connected at once."""
    _torch.init_process_group(
        backend,
        store=store,
        rank=place.rank,
        world_size=place.world_size,
        timeout=timeout,
        device_id=device,
    )


def exchange(store: Store, topic: str, place: Place, word: str) -> list[str]:
    """Return every rank's word, in rank order; rank 0 collects, so a rank reads one entry."""
    store.set(f"{topic}/{place.rank}", word)
    if place.rank == 0:
        words = [store.get(f"{topic}/{rank}").decode() for rank in range(place.world_size)]
        store.set(f"{topic}/all", json.dumps(words))
    told: list[str] = json.loads(store.get(f"{topic}/all"))
    return told
