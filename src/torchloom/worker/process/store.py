"""Serve an attempt's store from a process of its own, on a socket that the agent bound.

`python -m torchloom.worker.process.store FD`, or `serve(FD)` in a fork of a process that has torch.
Ranks of several nodes meet there; it ends with its attempt, so no key outlives it.
"""

import argparse
import contextlib
import importlib
import os
import signal
import socket
import stat
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn

from torchloom.errors import Failure, LoomError, UserError
from torchloom.launch.keeper.spawn import die_with_parent

READY = b"ready\n"
RESOLVER = "timeout:1 attempts:1"  # torch's client asks for its peer's name when it connects

_TIMEOUT = 300.0
_ALL_ADDRESSES = ("0.0.0.0", "::")


class BadSocket(UserError):
    """The descriptor is nothing a store can be served on."""

    code = "bad_socket"


class StoreFailed(Failure):
    """Torch could not serve on a socket that was right."""

    code = "store_failed"


def serve(
    fd: int,
    *,
    timeout: float = _TIMEOUT,
    ready: int = 1,
    leash: int | None = None,
    parent: int | None = None,
) -> NoReturn:
    """Serve on the listening socket until the parent dies, the leash closes or SIGTERM comes.

    `ready` is written to once clients are answered; those that came before wait in the backlog.
    `leash` is the read end of a pipe. `parent` is who forked this process, if it knows.
    """
    die_with_parent(os.getppid() if parent is None else parent)
    _reset_signals()
    host, port = _address(fd)
    os.environ.setdefault("RES_OPTIONS", RESOLVER)
    store = _start(fd, host, port, timeout)
    with contextlib.suppress(OSError):  # the reader is gone
        os.write(ready, READY)
    _wait(leash)
    del store
    os._exit(0)


def _start(fd: int, host: str, port: int, timeout: float) -> object:
    distributed: Any = importlib.import_module("torch.distributed")  # its names are untyped
    try:
        store: object = distributed.TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=fd,
            timeout=timedelta(seconds=timeout),
            use_libuv=True,
        )
        return store
    except RuntimeError as error:
        raise StoreFailed(f"no store on {host}:{port}: {error}") from error


def _address(fd: int) -> tuple[str, int]:
    """Return where the socket listens; it must be one address of this host, not all of them."""
    try:
        with socket.socket(fileno=os.dup(fd)) as listener:
            listening = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            name = listener.getsockname()
    except OSError as error:
        raise BadSocket(f"descriptor {fd} is not a socket ({error.strerror}); pass one") from error
    if not listening or not isinstance(name, tuple):
        raise BadSocket(f"descriptor {fd} is not a listening TCP socket; bind and listen first")
    if name[0] in _ALL_ADDRESSES:
        raise BadSocket(f"descriptor {fd} listens on all addresses; bind it to one of this host")
    return name[0], name[1]


def _reset_signals() -> None:
    """End by SIGTERM at once; leave a terminal's signals to the ranks."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _wait(leash: int | None) -> None:
    while leash is None:
        signal.pause()
    while os.read(leash, 4096):
        pass


def _leash() -> int | None:
    """Return stdin if another process can close it: a pipe, a socket, a terminal; not /dev/null."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return None
    return 0 if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(0) else None


def main(words: Sequence[str]) -> int:
    """Serve as the command line says; come back only with what went wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m torchloom.worker.process.store", description=__doc__
    )
    parser.add_argument("fd", type=int, help="an inherited, listening socket")
    parser.add_argument("--timeout", type=float, default=_TIMEOUT, help="seconds to start within")
    chosen = parser.parse_args(words)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch warns when a name has no answer
    try:
        serve(chosen.fd, timeout=chosen.timeout, leash=_leash())
    except LoomError as error:
        print(f"store: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
