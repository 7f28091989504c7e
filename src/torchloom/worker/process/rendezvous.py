"""Let `init_process_group` of an unmodified script meet in the store of this very attempt.

`LOOM_STORE` says where that is: `file:///dev/shm/.../attempt-0` on one node, or `tcp://HOST:PORT`
of a store process. On one node a store process serves at MASTER_ADDR:MASTER_PORT, too, as soon as a
client of it is made; until then the program itself may listen there. Whatever is not the launcher's
own group (a child's, one with the script's own address) and whatever this torch does in a way not
known here is left to torch's own handler. `jax.distributed.initialize()` finds the same ranks.
It runs before the user's first line, so it imports next to nothing.
"""

from __future__ import annotations

import contextlib
import functools
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
_JAX = "jax._src.clusters.cluster"
_HOSTED = ".hosted"  # beside the file as well, once a store process serves
_WANTED = ".wanted"  # beside the file: the pipe by which the agent learns that a store is wanted
_JAX_ADDRESS = "JAX_COORDINATOR_ADDRESS"
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_FILE = "file://"
_STORE_ARGUMENTS = (
    *("host_name", "port", "world_size", "is_master", "timeout", "wait_for_workers"),
    *("multi_tenant", "master_listen_fd", "use_libuv"),
)
_QUERY = {"rank", "world_size", "use_libuv"}


def install() -> None:
    """Answer `env://` from the attempt's store, now or as soon as torch is imported."""
    seat = StoreSeat(os.environ)
    if not seat.is_free():
        return
    seat.count(seat.meetings())
    if seat.has_host and os.environ.get("LOOM_ATTACH") != "0":  # not in children
        os.environ[_AGENT_STORE] = "True"
    when_imported(_MODULE, lambda module: _take_over(module, seat))
    when_imported(_JAX, lambda module: _add_cluster(module, seat))


def leave_to_parent() -> None:
    """Let a child of a rank meet peers of its own: nothing serves at an address that it sets."""
    seat = StoreSeat(os.environ)
    if seat.path and not seat.is_free():
        os.environ[_AGENT_STORE] = "False"


class StoreSeat:
    """What the launcher gave this process: a store, and the variables that go with it."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.store = env.get(STORE_VARIABLE, "")
        self._variables = _variables(env)
        self.pid = os.getpid()
        self._owner = f"{self.store}#{self.pid}:"

    @property
    def rank(self) -> int:
        return int(self._variables[0])

    @property
    def world_size(self) -> int:
        return int(self._variables[1])

    @property
    def path(self) -> str:
        """Return the file in which the ranks of one host meet; nothing over hosts."""
        return self.store.removeprefix(_FILE) if self.store.startswith(_FILE) else ""

    @property
    def has_host(self) -> bool:
        """Tell whether the agent serves a store at the group's address when one is wanted."""
        return bool(self.path) and os.path.exists(self.path + _WANTED)

    def is_address(self, host: object, port: object) -> bool:
        """Tell whether this is the address that the launcher has given the group."""
        own_host, own_port = self._variables[2:]
        return str(port) == own_port and host in (own_host, "localhost")

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
            os.getpid() == self.pid
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


def _add_cluster(module: Any, seat: StoreSeat) -> None:
    """Have `jax.distributed.initialize()` find the ranks of this group before any other cluster."""

    class TorchLoomCluster(module.ClusterEnv):  # type: ignore[misc]
        name = "torchloom"

        @classmethod
        def is_env_present(cls) -> bool:
            return seat.is_meant("") and _JAX_ADDRESS in os.environ

        @classmethod
        def get_coordinator_address(cls, *_: object, **__: object) -> str:
            return os.environ[_JAX_ADDRESS]

        @classmethod
        def get_process_count(cls) -> int:
            return seat.world_size

        @classmethod
        def get_process_id(cls) -> int:
            return seat.rank

        @classmethod
        def get_local_process_id(cls) -> int | None:
            local = os.environ.get("LOCAL_RANK", "")
            return int(local) if local.isdecimal() else None


def _take_over(module: ModuleType, seat: StoreSeat) -> None:
    """Put our handler before torch's; a torch that keeps handlers elsewhere keeps its own."""
    handlers = getattr(module, "_rendezvous_handlers", None)
    torchs = handlers.get("env") if isinstance(handlers, dict) else None
    if isinstance(handlers, dict) and callable(torchs) and not hasattr(torchs, "loom_seat"):
        handlers["env"] = _handler(torchs, seat)
        if callable(tcp := handlers.get("tcp")) and seat.path:
            handlers["tcp"] = _elsewhere(tcp, seat)
        if seat.has_host:
            _host_when_wanted(module.TCPStore, seat)


def _host_when_wanted(kind: Any, seat: StoreSeat) -> None:
    """Have the agent serve at the group's address before a client of it is made.

    A program whose first rank serves there itself does so, unless another rank was faster.
    """
    real = kind.__init__

    @functools.wraps(real)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        given = dict(zip(_STORE_ARGUMENTS, args, strict=False)) | kwargs
        if not seat.is_address(given.get("host_name"), given.get("port")):
            real(self, *args, **kwargs)
        elif not given.get("is_master"):
            _want(seat.path)
            real(self, *args, **kwargs)
        else:
            try:
                real(self, *args, **kwargs)
            except RuntimeError:
                if not os.path.exists(seat.path + _HOSTED):
                    raise
                real(self, **{**given, "is_master": False, "master_listen_fd": None})

    kind.__init__ = __init__


def _want(path: str) -> None:
    with contextlib.suppress(OSError):  # no agent reads: its successor does not know the pipe
        pipe = os.open(path + _WANTED, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(pipe, b"\n")
        finally:
            os.close(pipe)


def _elsewhere(torchs: Handler, seat: StoreSeat) -> Handler:
    """Return torch's handler of addresses; rank 0 serves at those that are not the launcher's."""

    def tcp(url: str, *args: Any, **kwargs: Any) -> Iterator[Meeting]:
        host, _, port = url.partition("://")[2].partition("?")[0].rstrip("/").rpartition(":")
        if seat.is_address(host, port) and os.getpid() == seat.pid:
            yield from torchs(url, *args, **kwargs)
        else:
            yield from _served_by_rank_0(torchs, url, *args, **kwargs)

    return tcp


def _served_by_rank_0(torchs: Handler, url: str, *args: Any, **kwargs: Any) -> Iterator[Meeting]:
    """Meet at an address where the launcher has no store, whatever its variable says."""
    before = os.environ.get(_AGENT_STORE)
    try:
        os.environ[_AGENT_STORE] = "False"
        yield from torchs(url, *args, **kwargs)
    finally:
        if before is not None:
            os.environ[_AGENT_STORE] = before


def _handler(torchs: Handler, seat: StoreSeat) -> Handler:
    def env(url: str, *args: Any, **kwargs: Any) -> Iterator[Meeting]:
        if not seat.is_meant(url):
            other = _served_by_rank_0 if seat.path else _as_it_is
            yield from other(torchs, url, *args, **kwargs)
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


def _as_it_is(torchs: Handler, url: str, *args: Any, **kwargs: Any) -> Iterator[Meeting]:
    yield from torchs(url, *args, **kwargs)


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
