"""Start one process of an app in its own session; read a command line as Python does."""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import re
import signal
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Literal, NoReturn

from torchloom.errors import UserError
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
    `warm` asks for the program to be run by a fork instead of being executed; `cold` is why a fork
    would not be what the order asks for, and is executed after all.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    fds: tuple[int, ...] = field(default=())
    terminal: bool = False
    warm: bool = False
    cold: str = ""


Run = Callable[[SpawnOrder], NoReturn]
Judge = Callable[[SpawnOrder], str]  # why a fork would not do, if so


def die_with_parent(parent: int) -> None:
    """Ask the kernel to end this process with its parent."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel knew
        os._exit(127)


def spawn(order: SpawnOrder, run: Run | None = None) -> int:
    """Return the pid of the started process; OSError as `exec` gave it when it cannot start.

    The caller has one thread, so a plain fork is safe, and the child can ask the kernel to end it
    with its parent before anything else happens. `run` is what a warm order becomes.
    """
    parent = os.getpid()
    if order.warm and run is not None:
        return _fork_warm(order, run, parent)
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


def _fork_warm(order: SpawnOrder, run: Run, parent: int) -> int:
    """Fork the program and return: the next rank need not wait until this one has begun."""
    os.close(os.open(order.cwd, os.O_RDONLY | os.O_DIRECTORY))  # an error is better said here
    # a signal that comes before the fork has shed our ways with them waits until it has
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become_warm(order, run, parent)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


def _become_warm(order: SpawnOrder, run: Run, parent: int) -> NoReturn:
    try:
        _set_apart(order, parent)
        os.chdir(order.cwd)
        os.closerange(max(_FIRST_EXTRA, len(order.fds)), _MOST_FDS)
        run(order)
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


def _set_apart(order: SpawnOrder, parent: int, report: int = 0) -> int:
    """Give a fork its own session, signals and descriptors; return where the report's went."""
    die_with_parent(parent)
    os.setsid()
    reset_signals()
    return _connect(order, report)


def reset_signals() -> None:
    """Be as a new process is: no handler, nothing blocked."""
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):
            signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _connect(order: SpawnOrder, report: int) -> int:
    """Put the descriptors in their places; return where the report's went."""
    if order.terminal:
        fcntl.ioctl(order.fds[0], termios.TIOCSCTTY, 0)
    beyond = _FIRST_EXTRA + len(order.fds)
    sources = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, beyond) for fd in (*order.fds, report)]
    for target, source in enumerate(sources[:-1]):
        os.dup2(source, target, inheritable=True)
    return sources[-1]


OUTSIDE_SHELLS = (":",)  # MPI launchers and srun read a bare colon as "and now another program"
_INTERPRETER = re.compile(r"python(\d+(\.\d+)*)?[tdm]?")
_WITH_VALUE = "WX"
_ALONE = "bBdEiIOPqRsSuvx"
_COLD_FLAGS = {
    "d": "-d prints while the parser works",
    "i": "-i stays interactive after the program",
    "S": "-S leaves site-packages out, and torch with them",
    "v": "-v prints while modules are imported",
    "x": "-x skips a line of the program",
}
_WARM_OPTIONS = ("faulthandler", "int_max_str_digits", "pycache_prefix", "utf8")
_COLD_VARIABLES = {
    "PYTHONDEVMODE": "development mode",
    "PYTHONDEBUG": "-d prints while the parser works",
    "PYTHONINSPECT": "-i stays interactive after the program",
    "PYTHONPROFILEIMPORTTIME": "imports are timed",
    "PYTHONTRACEMALLOC": "allocations are traced",
    "PYTHONVERBOSE": "-v prints while modules are imported",
    "PYTHONDUMPREFS": "objects are counted",
}
COLD_VARIABLES = tuple(_COLD_VARIABLES)


def program(words: Sequence[str], python: str, no_python: bool = False) -> tuple[str, ...]:
    """Return the command: `train.py` and `-m pkg.train` get the interpreter, others stay.

    With `no_python` the words are a program whatever they look like.
    """
    if not words:
        raise UserError("no command to launch; write `loom launch -n 4 -- python train.py`")
    first = words[0]
    if no_python:
        if first == "-m":
            raise UserError("--no-python and -m contradict each other; leave one out")
        return tuple(words)
    if first == "-m":
        if len(words) == 1:
            raise UserError("-m names no module; write `-m package.train`")
        return (python, "-u", *words)
    return (python, "-u", *words) if first.endswith(".py") else tuple(words)


def colon_proof(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command without a bare colon: launchers split their whole line at it."""
    if not any(word in OUTSIDE_SHELLS for word in command):
        return tuple(command)
    import shlex

    return ("/bin/sh", "-c", f"exec {shlex.join(command)}")


What = Literal["file", "module", "code", "stdin"]


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """`INTERPRETER FLAGS (TARGET | -m TARGET | -c TARGET | -) ARGS`, and the words as they came.

    Each flag is one word, its value with it (`-Werror`).
    """

    argv: tuple[str, ...]
    interpreter: str
    flags: tuple[str, ...]
    what: What
    target: str
    args: tuple[str, ...]

    @classmethod
    def parse(cls, argv: Sequence[str]) -> "PythonCommand | None":
        """Return the command; nothing when it is not Python, or runs no program (`--version`)."""
        if not argv or not _INTERPRETER.fullmatch(argv[0].rpartition("/")[2]):
            return None
        flags: list[str] = []
        words = list(argv[1:])
        while words:
            word = words.pop(0)
            if word == "--" and words:
                word = words.pop(0)
            elif word.startswith("-") and word != "-":
                found = _read_flag(word[1:], words, flags)
                if found == "more":
                    continue
                return found and cls(tuple(argv), argv[0], tuple(flags), *found, tuple(words))
            what: What = "stdin" if word == "-" else "file"
            return cls(tuple(argv), argv[0], tuple(flags), what, word, tuple(words))
        return cls(tuple(argv), argv[0], tuple(flags), "stdin", "", ())

    @property
    def sys_argv(self) -> list[str]:
        """What the program finds in `sys.argv` at first."""
        first = {"module": "-m", "code": "-c"}.get(self.what, self.target)
        return [first, *self.args]

    def through(self, entry: str) -> tuple[str, ...]:
        """Return the words that run the same program by way of an entry file of ours."""
        return (self.interpreter, *self.flags, entry, self.what, self.target, *self.args)

    def cold_because(self) -> str | None:
        """Return why an interpreter that is running already cannot run this, if it cannot."""
        for flag in self.flags:
            if flag.startswith("-X") and flag[2:].partition("=")[0] not in _WARM_OPTIONS:
                return f"{flag} changes how the interpreter starts"
            if flag[1:] in _COLD_FLAGS:
                return _COLD_FLAGS[flag[1:]]
        return None


def cold_variable(name: str) -> str:
    """Return what one of COLD_VARIABLES does to an interpreter."""
    return f"{name} is set: {_COLD_VARIABLES[name]}"


def _read_flag(
    letters: str, words: list[str], flags: list[str]
) -> tuple[What, str] | Literal["more"] | None:
    """Read one word of flags: what it runs if it says so, "more" when it needs the next word."""
    while letters:
        letter, letters = letters[0], letters[1:]
        if letter in "cm" or letter in _WITH_VALUE:
            if not letters and not words:
                return None
            value = letters or words.pop(0)
            if letter in "cm":
                return ("code" if letter == "c" else "module"), value
            flags.append(f"-{letter}{value}")
            return "more"
        if letter not in _ALONE:  # -h, -V, or what Python will complain about
            return None
        flags.append(f"-{letter}")
    return "more"
