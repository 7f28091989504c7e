"""Start one process of an app: own session, dead with its agent, an honest error if it cannot."""

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import sys
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True)
class Outputs:
    """The descriptors a child gets as 0, 1 and 2; a terminal also becomes its controlling one."""

    stdin: int
    stdout: int
    stderr: int
    terminal: bool = False


def become_subreaper() -> None:
    """Make orphans below this process its own children (Linux)."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def spawn(argv: Sequence[str], env: Mapping[str, str], cwd: str, outputs: Outputs) -> int:
    """Return the pid of the started command; OSError as `exec` gave it when it cannot start.

    The agent has one thread, so a plain fork is safe, and the child can ask the kernel to end it
    with its parent before anything else happens.
    """
    read_end, write_end = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become(argv, env, cwd, outputs, parent, write_end)
    os.close(write_end)
    with open(read_end, "rb") as report:
        failure = report.read()
    if failure:
        os.waitpid(pid, 0)
        number, _, what = failure.partition(b" ")
        raise OSError(int(number), os.strerror(int(number)), os.fsdecode(what))
    return pid


def _become(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    outputs: Outputs,
    parent: int,
    report: int,
) -> None:
    """Turn this fork into the command, or say why not; never returns."""
    what = cwd
    try:
        _die_with(parent)
        os.setsid()
        _reset_signals()
        _connect(outputs)
        os.chdir(cwd)
        what = argv[0]
        os.execvpe(argv[0], list(argv), dict(env))
    except OSError as error:
        os.write(report, f"{error.errno or errno.EINVAL} ".encode() + os.fsencode(what)[:4000])
    except ValueError as error:  # a NUL byte in an argument or a variable
        os.write(report, f"{errno.EINVAL} {error}".encode()[:4000])
    finally:
        os._exit(127)


def _die_with(parent: int) -> None:
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel knew
        os._exit(127)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):
            signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _connect(outputs: Outputs) -> None:
    if outputs.terminal:
        fcntl.ioctl(outputs.stdin, termios.TIOCSCTTY, 0)
    for target, source in enumerate((outputs.stdin, outputs.stdout, outputs.stderr)):
        os.dup2(source, target, inheritable=True)
