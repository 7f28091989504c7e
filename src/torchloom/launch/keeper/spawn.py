"""Start one process of an app: own session, dead with its keeper, an honest error if it cannot."""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import signal
import sys
import termios
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import NoReturn, Protocol

from torchloom.launch.variables import AGENT_VARIABLE, JOB_VARIABLE, NODE_VARIABLE
from torchloom.specs.dataclass import dataclass

_PR_SET_NAME, _PR_SET_MM, _PR_SET_MM_MAP = 15, 35, 14
_KEEP_EXE = 0xFFFFFFFF
_NAME_LIMIT = 15
_FIELDS = {  # of /proc/self/stat, as proc(5) numbers them
    "start_code": 26,
    "end_code": 27,
    "start_data": 45,
    "end_data": 46,
    "start_brk": 47,
    "start_stack": 28,
    "arg_start": 48,
    "arg_end": 49,
    "env_start": 50,
    "env_end": 51,
}
_PR_SET_PDEATHSIG = 1
_FIRST_EXTRA = 3  # the descriptor behind stdin, stdout and stderr
_MOST_FDS = 1 << 20
_RUN, _EXECUTE = b"r", b"x"


class _MemoryMap(ctypes.Structure):
    """What the kernel wants to know of a process all at once; see prctl(2)."""

    _fields_ = [
        ("start_code", ctypes.c_uint64),
        ("end_code", ctypes.c_uint64),
        ("start_data", ctypes.c_uint64),
        ("end_data", ctypes.c_uint64),
        ("start_brk", ctypes.c_uint64),
        ("brk", ctypes.c_uint64),
        ("start_stack", ctypes.c_uint64),
        ("arg_start", ctypes.c_uint64),
        ("arg_end", ctypes.c_uint64),
        ("env_start", ctypes.c_uint64),
        ("env_end", ctypes.c_uint64),
        ("auxv", ctypes.c_uint64),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    ]


def show(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Make ps and /proc show this command and this environment for the calling process."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NAME, os.fsencode(os.path.basename(argv[0]))[:_NAME_LIMIT], 0, 0, 0)
    if not _move(libc, _joined(argv), _joined(_entries(env))):
        overwrite(argv, env)


def overwrite(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Show as much as there is room for where the first program's words and variables lie.

    The variables that name the job of a process come first.
    """
    places = _places()
    first = sorted(env, key=lambda name: name not in (JOB_VARIABLE, NODE_VARIABLE, AGENT_VARIABLE))
    _fill(places["arg_start"], places["arg_end"], _joined(argv))
    variables = _joined(_entries({name: env[name] for name in first}))
    _fill(places["env_start"], places["env_end"], variables)


def _entries(env: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in env.items()]


def _joined(texts: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(text) + b"\0" for text in texts)


def _places() -> dict[str, int]:
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return {name: int(fields[number - 3]) for name, number in _FIELDS.items()}


def _move(libc: ctypes.CDLL, words: bytes, variables: bytes) -> bool:
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # the kernel reads no others here
    memory = mmap.mmap(-1, len(words) + len(variables) + 1, flags=private)
    memory.write(words + variables)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc.sbrk.restype = ctypes.c_void_p
    middle, end = start + len(words), start + len(words) + len(variables)
    found = _MemoryMap(**_places(), brk=libc.sbrk(0), exe_fd=_KEEP_EXE)
    found.arg_start, found.arg_end, found.env_start, found.env_end = start, middle, middle, end
    size = ctypes.c_ulong(ctypes.sizeof(found))
    if libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(found), size, 0):
        return False
    _shown.append(memory)  # stays as long as the process
    return True


def _fill(start: int, end: int, text: bytes) -> None:
    room = end - start
    ctypes.memmove(start, text[: room - 1].ljust(room, b"\0"), room)


_shown: list[mmap.mmap] = []


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True)
class SpawnOrder:
    """A process to start: its words, all of its environment, its folder and its descriptors.

    `fds` become 0, 1, 2, 3, ...; with `terminal` the first is one and becomes the controlling one.
    `warm` asks for the program to be run by a fork instead of being executed.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    fds: tuple[int, ...] = field(default=())
    terminal: bool = False
    warm: bool = False


class WarmForks(Protocol):
    """What a keeper that was forked from a zygote does for warm orders."""

    @property
    def are_known(self) -> bool:
        """Tell whether a verdict takes next to no time."""

    def why_cold(self, order: SpawnOrder) -> str:
        """Return why a fork must not run the program of an order, if so."""

    def forget(self) -> None:
        """Drop what is known: the next verdict must rest on what is found out from now on."""

    def look_ahead(self) -> bool:
        """Find out a part of what a verdict takes, in a moment; tell whether more is left."""

    def run(self, order: SpawnOrder, verdict: int) -> NoReturn:
        """Become the program of an order in a fork, once the verdict is there."""


class Verdict:
    """A pipe that carries to a warm fork whether it may run its program: it is forked first and
    initialises itself while its keeper finds out."""

    def __init__(self) -> None:
        self.read_end, self._write_end = os.pipe()

    def give(self, may_run: bool) -> None:
        with open(self._write_end, "wb", buffering=0) as pipe, contextlib.suppress(BrokenPipeError):
            pipe.write(_RUN if may_run else _EXECUTE)

    def close(self) -> None:
        """Forget a fork that could not be made."""
        os.close(self._write_end)


def may_run(verdict: int) -> bool:
    """Wait for the verdict of the keeper and tell whether this fork may run its program."""
    with open(verdict, "rb", buffering=0) as pipe:
        return pipe.read(1) == _RUN


def die_with_parent(parent: int) -> None:
    """Ask the kernel to end this process with its parent."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel knew
        os._exit(127)


def spawn(order: SpawnOrder) -> int:
    """Return the pid of the started process; OSError as `exec` gave it when it cannot start.

    The caller has one thread, so a plain fork is safe, and the child can ask the kernel to end it
    with its parent before anything else happens.
    """
    parent = os.getpid()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(order, parent, write_end)
    os.close(write_end)
    with open(read_end, "rb") as report:
        failure = report.read()
    if failure:
        os.waitpid(pid, 0)
        number, _, what = failure.partition(b" ")
        raise OSError(int(number), os.strerror(int(number)), os.fsdecode(what))
    return pid


def fork_warm(order: SpawnOrder, forks: WarmForks) -> tuple[int, Verdict]:
    """Fork the program and return at once: its pid, and the verdict that it will wait for."""
    os.close(os.open(order.cwd, os.O_RDONLY | os.O_DIRECTORY))  # an error is better said here
    verdict = Verdict()
    try:
        return _fork(order, forks, verdict.read_end), verdict
    except OSError:
        verdict.close()
        raise
    finally:
        os.close(verdict.read_end)


def _fork(order: SpawnOrder, forks: WarmForks, verdict: int) -> int:
    parent = os.getpid()
    # a signal that comes before the fork has shed our ways with them waits until it has
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become_warm(order, forks, parent, verdict)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


def _become_warm(order: SpawnOrder, forks: WarmForks, parent: int, verdict: int) -> NoReturn:
    try:
        verdict = _set_apart(order, parent, verdict)
        os.chdir(order.cwd)
        os.closerange(max(_FIRST_EXTRA, len(order.fds)), verdict)
        os.closerange(verdict + 1, _MOST_FDS)
        forks.run(order, verdict)
    finally:
        os._exit(127)


def _become(order: SpawnOrder, parent: int, report: int) -> None:
    """Turn this fork into the command, or say why not; never returns."""
    what = order.cwd
    try:
        report = _set_apart(order, parent, report)
        os.chdir(order.cwd)
        what = order.argv[0]
        os.execvpe(order.argv[0], list(order.argv), dict(order.env))
    except OSError as error:
        os.write(report, f"{error.errno or errno.EINVAL} ".encode() + os.fsencode(what)[:4000])
    except ValueError as error:  # a NUL byte in an argument or a variable
        os.write(report, f"{errno.EINVAL} {error}".encode()[:4000])
    finally:
        os._exit(127)


def _set_apart(order: SpawnOrder, parent: int, extra: int) -> int:
    """Give a fork its own session, signals and descriptors; return where the extra one went."""
    die_with_parent(parent)
    os.setsid()
    reset_signals()
    return _connect(order, extra)


def reset_signals() -> None:
    """Be as a new process is: no handler, nothing blocked."""
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):
            signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _connect(order: SpawnOrder, extra: int) -> int:
    """Put the descriptors in their places; return where the extra one went."""
    if order.terminal:
        fcntl.ioctl(order.fds[0], termios.TIOCSCTTY, 0)
    beyond = _FIRST_EXTRA + len(order.fds)
    sources = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, beyond) for fd in (*order.fds, extra)]
    for target, source in enumerate(sources[:-1]):
        os.dup2(source, target, inheritable=True)
    return sources[-1]
