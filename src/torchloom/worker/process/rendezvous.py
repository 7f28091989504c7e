"""Let `init_process_group` of an unmodified script meet in the store of this very attempt.

`LOOM_STORE` says where that is: `file:///dev/shm/.../attempt-0` on one node, or `tcp://HOST:PORT`
of a store process. Whatever is not the launcher's own group (a child's, one with the script's own
address) and whatever this torch does in a way not known here is left to torch's own handler.
It runs before the user's first line, so it imports next to nothing.
"""

from __future__ import annotations

import os
import sys

from torchloom.worker.threadlet.import_hook import when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType
    from typing import Any

    Meeting = tuple[Any, int, int]  # store, rank, world size
    Handler = Callable[..., Iterator[Meeting]]

STORE_VARIABLE = "LOOM_STORE"
OWNER_VARIABLE = "LOOM_STORE_OWNER"  # who sits here and met how often; set here, for children
SEAT_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_MODULE = "torch.distributed.rendezvous"
_FILE = "file://"
_QUERY = {"rank", "world_size", "use_libuv"}


def install() -> None:
    """Answer `env://` from the attempt's store, now or as soon as torch is imported."""
    seat = StoreSeat(os.environ)
    if not seat.is_free():
        return
    seat.count(seat.meetings())
    when_imported(_MODULE, lambda module: _take_over(module, seat))


class StoreSeat:
    """What the launcher gave this process: a store, and the variables that go with it."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.store = env.get(STORE_VARIABLE, "")
        self._variables = _variables(env)
        self._pid = os.getpid()
        self._owner = f"{self.store}#{self._pid}:"

    @property
    def rank(self) -> int:
        return int(self._variables[0])

    @property
    def world_size(self) -> int:
        return int(self._variables[1])

    def is_free(self) -> bool:
        """Tell whether the seat is complete and this process's own, not that of its parent."""
        owner = os.environ.get(OWNER_VARIABLE, "")
        taken = owner.startswith(f"{self.store}#") and not owner.startswith(self._owner)
        complete = bool(self.store) and all(word.isdecimal() for word in self._variables[:2])
        return complete and not taken

    def is_meant(self, url: str) -> bool:
        """Tell whether a rendezvous is the launcher's own group, not one of the script's making."""
        query = dict(pair.partition("=")[::2] for pair in url.partition("?")[2].split("&") if pair)
        return (
            os.getpid() == self._pid
            and os.environ.get(STORE_VARIABLE) == self.store
            and _variables(os.environ) == self._variables
            and query.keys() <= _QUERY
            and query.get("rank", self._variables[0]) == self._variables[0]
            and query.get("world_size", self._variables[1]) == self._variables[1]
        )

    def meetings(self) -> int:
        """Return how often this process has met its peers, over an exec too."""
        owner = os.environ.get(OWNER_VARIABLE, "")
        return int(owner.removeprefix(self._owner)) if owner.startswith(self._owner) else 0

    def count(self, meetings: int) -> None:
        os.environ[OWNER_VARIABLE] = f"{self._owner}{meetings}"


def _variables(env: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(env.get(name, "") for name in SEAT_VARIABLES)


def _take_over(module: ModuleType, seat: StoreSeat) -> None:
    """Put our handler before torch's; a torch that keeps handlers elsewhere keeps its own."""
    handlers = getattr(module, "_rendezvous_handlers", None)
    torchs = handlers.get("env") if isinstance(handlers, dict) else None
    if isinstance(handlers, dict) and callable(torchs) and not hasattr(torchs, "loom_seat"):
        handlers["env"] = _handler(torchs, seat)


def _handler(torchs: Handler, seat: StoreSeat) -> Handler:
    def env(url: str, *args: Any, **kwargs: Any) -> Iterator[Meeting]:
        if not seat.is_meant(url):
            yield from torchs(url, *args, **kwargs)
            return
        meetings = seat.meetings()
        seat.count(meetings + 1)
        store = _file_store(seat.store, meetings, kwargs.get("timeout"))
        if store is not None:
            yield store, seat.rank, seat.world_size
            return
        for found, rank, world_size in torchs(url, *args, **kwargs):
            yield _apart(found, meetings), rank, world_size

    env.loom_seat = seat  # type: ignore[attr-defined]
    return env


def _file_store(store: str, meetings: int, timeout: Any) -> Any:
    """Return the file of this meeting; nothing when the peers are to be met at their address.

    A second group after `destroy_process_group` has a file of its own: the first one still holds
    the addresses of closed sockets. No rank deletes any: torch would count a fork that ends with
    its copy of the store object as a rank that left.
    """
    if not store.startswith(_FILE):
        return None
    path = store.removeprefix(_FILE) + (f".{meetings}" if meetings else "")
    folder = os.path.dirname(path)
    if not os.access(folder, os.W_OK | os.X_OK):
        _note(f"cannot write to {folder}")
        return None
    try:
        found = sys.modules["torch.distributed"].FileStore(path, -1)
        if timeout is not None:
            found.set_timeout(timeout)
    except (KeyError, AttributeError, TypeError) as error:  # another torch, the same in all ranks
        _note(str(error))
        return None
    return found


def _apart(store: Any, meetings: int) -> Any:
    """Return the store process's store, without the keys of this process's earlier groups."""
    if not meetings:
        return store
    return sys.modules["torch.distributed"].PrefixStore(f"meeting-{meetings}", store)


def _note(why: str) -> None:
    import logging

    logging.getLogger(__name__).warning("no store file, ranks meet at MASTER_ADDR: %s", why)
