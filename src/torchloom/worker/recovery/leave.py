"""Leave a group whose other members may be dead or stopped, at once and from any thread."""

import contextlib
import ctypes
import functools
import gc
import os
import re
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchloom.errors import Failure
from torchloom.worker.recovery.standin import one_prefix
from torchloom.worker.threadlet.import_hook import when_imported

_TASKS = Path("/proc/self/task")
_WORKER, _LOOP = "pt_gloo_runloop", "gloo_tcp_loop"  # threads that run collectives, and that read
_FUTEX = ("202", "98")  # the number of that call: x86-64, arm64
_MOST = 2.0  # seconds; a thread that is busy by then is left alone
_PAUSE = 0.001
_SPUN = 5_000_000  # ns in which the loop has read all there is; it does not rest meanwhile
_UNREAD = 0.15  # seconds after which it is not waited for any more
_GONE = b"gloo/gloo/transport/tcp: the connection to a peer is gone"
_CLASS = "N4gloo9transport3tcp13UnboundBuffer"
_TELL = f"_Z{_CLASS}15signalExceptionENSt15__exception_ptr13exception_ptrE"
_TABLE = f"_ZTV{_CLASS}E"
_TO_METHODS = 16  # bytes from the begin of a class's table to where its objects point
_CONDITIONS = (0x50, 0x80)  # where a buffer has those for what is received, and sent
_SIGNALS = (0x28, 0x2C)  # where a condition has what is slept on
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


_alone = threading.Lock()


class _Unknown(Exception):
    """This build of torch is not known."""


@dataclass(frozen=True, slots=True)
class _Thread:
    """Whether a thread sleeps, and on which buffer."""

    is_asleep: bool = False
    buffer: int = 0


def end_waits(
    threads: Iterable[int], is_open: Callable[[], bool], is_wanted: Callable[[], bool]
) -> None:
    """Have these threads raise where they wait for peers, whose connections have been shut down.

    Returns when those that run collectives have nothing to do, or when it is no longer wanted.
    """
    with _alone, contextlib.suppress(_Unknown, OSError):
        gloo, names = _gloo(), {one: _name(one) for one in threads}
        loops = [one for one, name in names.items() if name == _LOOP]
        is_settled = _settling(loops, is_open)
        before: Mapping[int, _Thread] = {}
        deadline = time.monotonic() + _MOST
        while is_wanted() and time.monotonic() < deadline:
            now = {one: _seen(one, gloo.table) for one in names if one not in loops}
            if is_settled():
                for one, seen in now.items():
                    if seen.buffer and before.get(one) == seen and is_wanted():
                        gloo.signal(seen.buffer)
                workers = (seen for one, seen in now.items() if names[one] == _WORKER)
                if not any(seen.buffer for seen in now.values()) and all(
                    seen.is_asleep for seen in workers
                ):
                    break
            before = now
            time.sleep(_PAUSE)


def threads() -> frozenset[int]:
    """Return the threads of this process."""
    with contextlib.suppress(OSError):
        return frozenset(map(int, os.listdir(_TASKS)))
    return frozenset()


def _settling(loops: Iterable[int], is_open: Callable[[], bool]) -> Callable[[], bool]:
    """Return a function: has gloo's loop handled all events that it has seen?"""
    begun, ran = time.monotonic(), sum(map(_ran, loops))

    def is_settled() -> bool:
        if not is_open() or time.monotonic() - begun > _UNREAD:
            return True
        return sum(map(_ran, loops)) - ran > _SPUN

    return is_settled


def _seen(thread: int, table: int) -> _Thread:
    try:
        words = (_TASKS / str(thread) / "syscall").read_text().split()
    except OSError:  # it is over
        return _Thread(is_asleep=True)
    if words[0] not in _FUTEX:
        return _Thread()
    word = int(words[1], 16)
    around = (word - signal - condition for condition in _CONDITIONS for signal in _SIGNALS)
    return _Thread(True, next((one for one in around if _at(one) == table), 0))


def _at(address: int) -> int:
    """Return what stands somewhere in memory, if something does."""
    with contextlib.suppress(OSError, OverflowError):
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.pread(memory, 8, address)
        finally:
            os.close(memory)
        return int(struct.unpack("Q", found)[0]) if len(found) == 8 else 0
    return 0


def _name(thread: int) -> str:
    with contextlib.suppress(OSError):
        return (_TASKS / str(thread) / "comm").read_text().strip()
    return ""


def _ran(thread: int) -> int:
    """Return for how many nanoseconds a thread has run."""
    with contextlib.suppress(OSError):
        return int((_TASKS / str(thread) / "schedstat").read_text().split()[0])
    return 0


class _Gloo:
    """The functions of torch's gloo, and of the library below it, that are called here."""

    def __init__(self) -> None:
        import torch

        library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
        try:
            gloo, self._base = ctypes.CDLL(str(library)), ctypes.CDLL("libstdc++.so.6")
            self._signal = gloo[_TELL]
            self.table = ctypes.addressof(ctypes.c_char.in_dll(gloo, _TABLE)) + _TO_METHODS
            self._new = self._base["__cxa_allocate_exception"]
            self._prepare = self._base["__cxa_init_primary_exception"]
            self._fill = self._base["_ZNSt13runtime_errorC1EPKc"]
            self._own = self._base["_ZNSt15__exception_ptr13exception_ptrC1EPv"]
        except (OSError, ValueError, AttributeError) as error:
            raise _Unknown(str(error)) from error
        self._new.restype = ctypes.c_void_p

    def signal(self, buffer: int) -> None:
        """Make the thread that waits for a buffer raise."""
        held = self._exception()
        self._signal(ctypes.c_void_p(buffer), ctypes.byref(held))  # and takes it

    def _exception(self) -> Any:
        kind = ctypes.byref(ctypes.c_char.in_dll(self._base, "_ZTISt13runtime_error"))
        error = ctypes.c_void_p(self._new(ctypes.c_size_t(16)))
        self._prepare(error, kind, self._base["_ZNSt13runtime_errorD1Ev"])
        self._fill(error, _GONE)
        held = ctypes.c_void_p()
        self._own(ctypes.byref(held), error)
        return held


@functools.cache
def _gloo() -> _Gloo:
    return _Gloo()


_Socket = tuple[int, int]  # descriptor and inode: a number is used again
_current: "list[DefaultGroup]" = []


class NotMet(Failure):
    """The members of a group did not meet."""

    code = "not_met"


class DefaultGroup:
    """The default process group, and the connections that it has to its members."""

    def __init__(self) -> None:
        self._before = _open_sockets()
        self._opened: frozenset[_Socket] | None = None
        self._threads = threads()

    @classmethod
    def opened(cls, make: Callable[[], None]) -> "DefaultGroup":
        """Make the group and note what that opens."""
        group = cls()
        _current[:] = [group]  # already now: with a dead member its creation may take long
        try:
            with one_prefix():
                make()
        except BaseException:
            _current.clear()
            raise
        group._opened = _open_sockets() - group._before
        group._threads = threads() - group._threads
        return group

    def free(self) -> None:
        """Make a waiting collective raise, and every one after it; from any thread.

        Gloo's own abort does not interrupt; connections that are shut down do. They are not closed:
        gloo owns them.
        """
        self._shut()
        self._interrupt({*self._threads, os.getpid()}, lambda: self in _current)

    def leave(self) -> None:
        """Destroy the group; the members notice at once. Drop the models that use it before.

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
            with contextlib.suppress(RuntimeError):  # it was not used yet
                group.abort()
        if "gloo" in names and self._opened is not None:
            end_waits(threads, self._is_open, is_wanted)

    def _sockets(self) -> frozenset[_Socket]:
        return self._opened if self._opened is not None else _open_sockets() - self._before

    def _is_open(self) -> bool:
        """Return whether gloo still has a connection of this group."""
        for number, inode in self._sockets():
            with contextlib.suppress(OSError), _borrowed(number, inode) as one:
                if _is_connection(one):
                    return True
        return False


def is_collective_error(error: BaseException) -> bool:
    """Return whether an exception, or what led to it, may come from a group, and so from a peer."""
    seen: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in seen:
        if _is_of_a_group(one):
            return True
        seen.append(one)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return False


def watch() -> None:
    """Note the group that the program makes by itself; to be called before it starts."""
    when_imported(_MODULE, _take_over)


def current() -> DefaultGroup | None:
    """Return the default group, if it is known what it opened."""
    module = sys.modules.get(_PACKAGE)
    is_there = module is not None and module.is_available() and module.is_initialized()
    return _current[0] if _current and is_there else None


def free() -> None:
    """Interrupt waiting in the default group, or in its creation; from any thread."""
    for group in _current[:]:
        group.free()


def has_more_groups() -> bool:
    """Return whether there are groups besides the default one."""
    world = getattr(sys.modules.get(_MODULE), "_world", None)
    return len(getattr(world, "pg_map", ())) > 1


def _is_of_a_group(error: BaseException) -> bool:
    """Judge one exception: NCCL and TCP stores have types of their own, gloo has texts only."""
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
        DefaultGroup.opened(lambda: torchs(*args, **kwargs))

    module.init_process_group = init_process_group
    package = sys.modules.get(_PACKAGE)
    if package is not None and hasattr(package, "init_process_group"):
        package.init_process_group = init_process_group  # type: ignore[attr-defined]


def _open_sockets() -> frozenset[_Socket]:
    found = set()
    for name in os.listdir(_FOLDER):
        with contextlib.suppress(OSError):  # the folder's own, closed by now
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found.add((int(name), status.st_ino))
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
