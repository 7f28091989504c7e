"""Unix sockets that only this user can call, and the event loop that serves them."""

import contextlib
import errno
import importlib
import os
import signal
import socket
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from types import FrameType

from torchloom import settings
from torchloom.errors import Failure
from torchloom.settings import LOOPBACK
from torchloom.unix import make_private, reachable, same_user

UPLINK = "agent.sock"  # among the plane's sockets: where it takes the messages of a node's ranks
_BACKLOG = 64


def free_port() -> int:
    """Return a port that is free at this instant."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
    return port


def settle(wanted: Mapping[str, int]) -> dict[str, int]:
    """Return the ports of a replica: 0 becomes any free one, others stay."""
    return {name: port or free_port() for name, port in wanted.items()}


class RuntimeFolderUnsafe(Failure):
    """Another user owns the folder for our sockets, or it cannot be made."""

    code = "runtime_folder_unsafe"

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"cannot keep sockets in {path}: {why}; set XDG_RUNTIME_DIR to a local folder of yours"
        )


def socket_path(name: str) -> Path:
    """Return where a socket of this name lies; its folder exists and is ours alone."""
    folder = settings.runtime_dir()
    try:
        make_private(folder)
    except OSError as error:
        raise RuntimeFolderUnsafe(folder, error.strerror or str(error)) from error
    return folder / name


def launch_address(app_id: str) -> Path:
    """Return where a run's launch process takes calls from its own host."""
    return socket_path(f"{app_id}.launch")


def listen(path: Path) -> socket.socket:
    """Return a socket that takes calls at a path; one that was there before is replaced."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    with reachable(path) as address:
        listener.bind(address)
    path.chmod(0o600)
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


def connect(path: Path) -> socket.socket:
    """Call the process of ours that listens at a path; OSError when there is none."""
    channel = socket.socket(socket.AF_UNIX)
    try:
        with reachable(path) as address:
            channel.connect(address)
        if not same_user(channel):
            raise PermissionError(errno.EPERM, f"another user listens at {path}")
    except OSError:
        channel.close()
        raise
    return channel


FORWARDED = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)  # to the ranks
ENDING = (signal.SIGTERM, signal.SIGQUIT)  # politely, at once
# What a terminal, a batch system or a user sends to all of a job: it is meant for the ranks.
_IGNORED = (
    *(signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)
LOADED_AFTER = 2.0  # seconds that a process has lived before it imports what it may need later
_NEEDED = (  # imported where they are used, so that a start need not wait for them
    "torchloom.errors",
    "torchloom.launch.keeper.service",
    "torchloom.launch.keeper.client",
    "torchloom.launch.records.resumption",
    "torchloom.launch.records.parcel",
    "torchloom.launch.keeper.spawn",
    "torchloom.launch.supervisor.recovery",
    "torchloom.launch.hosts.tunnels",
    "torchloom.launch.agent.stores",
    "torchloom.launch.supervisor.plane_link",
    "torchloom.bus.progress_page",
    "torchloom.messages.membership",
    "torchloom.bus.subjects",
    "torchloom.checkpoint.local",
    "torchloom.checkpoint.manifest",
    "torchloom.checkpoint.storage",
)


class SignalPipe:
    """Signals that came since it was made, in order; `more` of them where they mean something."""

    def __init__(self, more: Iterable[signal.Signals] = ()) -> None:
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for signum in _IGNORED:
            signal.signal(signum, signal.SIG_IGN)
        for signum in (signal.SIGCHLD, *more):
            signal.signal(signum, _note)

    def fileno(self) -> int:
        return self._read_end

    def read(self) -> list[int]:
        """Return what came, each kind once: two SIGCHLD mean no more than one."""
        try:
            return list(dict.fromkeys(os.read(self._read_end, 4096)))
        except BlockingIOError:
            return []


def _note(_signum: int, _frame: FrameType | None) -> None:
    """Let Python write the number into the pipe."""


def load_needed() -> None:
    """Import what this process may need later: by then another version may lie in its place.

    Where one is being put there right now, what cannot be imported is tried again when it is used.
    """
    for name in _NEEDED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


class Timers:
    """Calls that are due later; the loop asks how long it may wait."""

    def __init__(self) -> None:
        self._acts: dict[Hashable, tuple[float, Callable[[], object]]] = {}

    def __contains__(self, name: Hashable) -> bool:
        return name in self._acts

    def put(self, name: Hashable, seconds: float, act: Callable[[], object]) -> None:
        """Do something in so many seconds; under a name that is taken, instead of that."""
        self._acts[name] = (time.monotonic() + seconds, act)

    def drop(self, name: Hashable) -> None:
        """Do it no more; what has been done, or was never put, is fine."""
        self._acts.pop(name, None)

    def waits(self) -> list[float]:
        """Return in how many seconds each is due."""
        return [max(0.0, when - time.monotonic()) for when, _ in self._acts.values()]

    def do(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        for name in [name for name, (when, _) in self._acts.items() if when <= now]:
            if name in self._acts:  # an act before it may have taken it back
                self._acts.pop(name)[1]()
