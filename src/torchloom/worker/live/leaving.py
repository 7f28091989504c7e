"""Leave a group whose other members may be dead or stopped, at once and from any thread."""

import contextlib
import functools
import gc
import os
import re
import socket
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torchloom.errors import Failure
from torchloom.worker.live import forgotten
from torchloom.worker.live.early import one_prefix, when_distributed

_PACKAGE = "torch.distributed"
_MODULE = "torch.distributed.distributed_c10d"
_FOLDER = "/proc/self/fd"
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_WORDS = re.compile(
    r"\bgloo/gloo/"  # every error of its transports begins with the place in its source
    r"|^Gloo connectFullMesh failed"
    r"|^Wait timeout$|^Timeout waiting for key: "  # a store in a file
    r"|\bNCCL (error|communicator)|\bncclRemoteError|Watchdog caught collective operation timeout"
)
_Socket = tuple[int, int]  # descriptor and inode: a number is used again
_current: "list[Group]" = []


class NotMet(Failure):
    """The members of a group did not come together."""

    code = "not_met"


class Group:
    """The default process group, and the connections that it has to its members."""

    def __init__(self) -> None:
        self._before = _open_sockets()
        self._opened: frozenset[_Socket] | None = None
        self._threads = forgotten.threads()

    @classmethod
    def opened(cls, make: Callable[[], None]) -> "Group":
        """Make the group and note what that opens."""
        group = cls()
        _current[:] = [group]  # from now on: making it may take as long as a dead member lets it
        try:
            with one_prefix():
                make()
        except BaseException:
            _current.clear()
            raise
        group._opened = _open_sockets() - group._before
        group._threads = forgotten.threads() - group._threads
        return group

    def free(self) -> None:
        """Have a collective that waits for somebody raise, and every one after it; any thread may.

        Gloo's own abort does not interrupt; connections that are shut down do. They are not closed:
        gloo owns them.
        """
        self._shut()
        self._interrupt({*self._threads, os.getpid()}, lambda: self in _current)

    def leave(self) -> None:
        """Destroy the group; the members notice at once. Models that are joined by it go before.

        A model or a traceback that still holds it keeps its threads, but no member waiting.
        """
        if self in _current:
            _current.remove(self)
        self._shut()
        self._interrupt(self._threads, lambda: True)
        distributed = sys.modules.get(_PACKAGE)
        if distributed is not None and distributed.is_initialized():
            gc.collect(1)  # all of it takes longer than all else here
            distributed.destroy_process_group()

    def _shut(self) -> None:
        for number, inode in self._sockets():
            with contextlib.suppress(OSError), _borrowed(number, inode) as one:
                if _is_connection(one):
                    one.shutdown(socket.SHUT_RDWR)

    def _interrupt(self, threads: Iterable[int], is_wanted: Callable[[], bool]) -> None:
        """Interrupt what does not notice that its connections are shut down."""
        module = sys.modules.get(_MODULE)
        if module is None or not module.is_initialized():
            return
        group = module.group.WORLD
        names = str(module.get_backend(group))
        if "nccl" in names and hasattr(group, "abort"):  # its connections are its own
            with contextlib.suppress(RuntimeError):  # nothing of it was used yet
                group.abort()
        if "gloo" in names and self._opened is not None:
            forgotten.end_waits(threads, self._is_open, is_wanted)

    def _sockets(self) -> frozenset[_Socket]:
        return self._opened if self._opened is not None else _open_sockets() - self._before

    def _is_open(self) -> bool:
        """Tell whether gloo still has a connection of this group."""
        for number, inode in self._sockets():
            with contextlib.suppress(OSError), _borrowed(number, inode) as one:
                if _is_connection(one):
                    return True
        return False


def is_collective_error(error: BaseException) -> bool:
    """Tell whether an exception, or what led to it, may come from a group, and so from a peer."""
    seen: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in seen:
        if _is_of_a_group(one):
            return True
        seen.append(one)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return False


def watch() -> None:
    """Note the group that the program makes by itself; to be called before its first line."""
    when_distributed(_take_over)


def current() -> Group | None:
    """Return the default group, if it is known what it opened."""
    module = sys.modules.get(_PACKAGE)
    is_there = module is not None and module.is_available() and module.is_initialized()
    return _current[0] if _current and is_there else None


def free() -> None:
    """Free whoever waits in the default group, or in making it; any thread may."""
    for group in _current[:]:
        group.free()


def has_more_groups() -> bool:
    """Tell whether there are groups besides the default one."""
    world = getattr(sys.modules.get(_MODULE), "_world", None)
    return len(getattr(world, "pg_map", ())) > 1


def _is_of_a_group(error: BaseException) -> bool:
    """Judge one exception: NCCL and TCP stores have types of their own, gloo has words only."""
    if isinstance(error, NotMet):
        return True
    known = getattr(sys.modules.get(_PACKAGE), "DistError", ())
    if isinstance(error, known):
        return True
    return type(error) is RuntimeError and _WORDS.search(str(error)) is not None


def _take_over(module: Any) -> None:
    torchs = module.init_process_group

    @functools.wraps(torchs)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        Group.opened(lambda: torchs(*args, **kwargs))

    module.init_process_group = init_process_group
    package = sys.modules.get(_PACKAGE)
    if package is not None and hasattr(package, "init_process_group"):
        package.init_process_group = init_process_group  # type: ignore[attr-defined]


def _open_sockets() -> frozenset[_Socket]:
    found = set()
    for name in os.listdir(_FOLDER):
        with contextlib.suppress(OSError):  # the folder's own, closed by now
            told = os.fstat(int(name))
            if stat.S_ISSOCK(told.st_mode):
                found.add((int(name), told.st_ino))
    return frozenset(found)


@contextlib.contextmanager
def _borrowed(number: int, inode: int) -> Iterator[socket.socket]:
    """Give a socket by its number without owning it; OSError if the number is another's by now."""
    with socket.socket(fileno=os.dup(number)) as one:
        if os.fstat(one.fileno()).st_ino != inode:
            raise OSError("it was closed")
        yield one


def _is_connection(one: socket.socket) -> bool:
    listens = bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return one.family in _INTERNET and not listens
