"""Where the ranks of a node speak to the plane: at its own agent, or at a relay that we keep."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchloom import settings
from torchloom.launch import wire
from torchloom.launch.host.descendants import JobShare
from torchloom.launch.host.sockets import UPLINK
from torchloom.launch.keeper.spawn import SpawnOrder, spawn
from torchloom.unix import make_private

if TYPE_CHECKING:
    pass

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # seconds before it is started again
_LIVED = 10.0  # seconds after which an end is bad luck, not a fault that will come again
_MOST_ENDS = 5  # in a row after which it is worth a word
_SHUTDOWN_LIMIT = 4.0  # seconds to bring away what is on its disk
_MOST_LOG = 4 << 20  # bytes


class NodeAgentProcess:
    """The relay of one job on this node, once it is wanted."""

    def __init__(self, share: JobShare, launcher: wire.LaunchAddress) -> None:
        self._share = share
        self._launcher = launcher
        self._folder = settings.runtime_dir() / share.app_id / share.node
        self._pid: int | None = None
        self._is_wanted = True
        self._started = 0.0
        self._pause = _FIRST_PAUSE
        self._ends = 0
        self._due: float | None = None

    @property
    def address(self) -> Path:
        """Where ranks of this node speak to the plane."""
        return self._folder / UPLINK

    @property
    def is_there(self) -> bool:
        return self._pid is not None

    @property
    def patience(self) -> float | None:
        """Return in how many seconds it is to be started again, if it is."""
        return None if self._due is None else max(0.0, self._due - time.monotonic())

    def start(self) -> None:
        """Start it, if it does not run."""
        if self._pid is None and self._due is None and self._is_wanted:
            self._start()

    def look(self, ended: Iterable[tuple[int, int]] = ()) -> str:
        """Take note of children that ended, start what is due; return what there is to say."""
        said = ""
        for pid, status in ended:
            if pid == self._pid:
                said = self._ended(f"exit code {os.waitstatus_to_exitcode(status)}")
        if self._due is not None and self._due <= time.monotonic():
            return self._start()
        return said

    def leave(self, at_once: bool) -> float:
        """Have it leave for good; return how long that may take."""
        self._is_wanted, self._due = False, None
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL if at_once else signal.SIGTERM)
        return _SHUTDOWN_LIMIT

    def _start(self) -> str:
        self._due, self._started = None, time.monotonic()
        own = (settings.runtime_dir(), self._folder.parent, self._folder)
        try:
            for folder in own:
                make_private(folder)
            self._pid = self._execute()
        except OSError as error:
            return self._ended(str(error))
        return ""

    def _execute(self) -> int:
        from torchloom.bus import subjects  # most nodes need none

        name = subjects.agent_of_job(self._share.node, self._share.app_id)
        words = (sys.executable, "-P", "-m", "torchloom.launch.node_agent")
        places = ("--through", str(self._launcher), "--runtime", str(self._folder))
        argv = (*words, *places, "--agent", name, "--node", self._share.node)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        log = _log_of(self._share.node)
        try:
            return spawn(SpawnOrder(argv, settings.environment(), os.sep, (null, log, log)))
        finally:
            os.close(null)
            os.close(log)

    def _ended(self, how: str) -> str:
        """Have it started again; return why it does not live, the first time that shows."""
        now = time.monotonic()
        if now - self._started > _LIVED:
            self._pause, self._ends = _FIRST_PAUSE, 0
        self._pid, self._ends = None, self._ends + 1
        if not self._is_wanted:
            return ""
        self._due = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        if self._ends != _MOST_ENDS:
            return ""
        return f"the plane's agent there does not live: {how}; see {_log_path(self._share.node)}"


def _log_path(node: str) -> Path:
    return settings.loom_home() / "plane" / "logs" / f"{node}-agent.log"


def _log_of(node: str) -> int:
    """Return a file for what it has to say; nothing is kept where none can be made."""
    path = _log_path(node)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > _MOST_LOG:
            path.replace(path.with_suffix(".old"))
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


class PlaneUplink:
    """One job's way to the plane from this node."""

    def __init__(self, share: JobShare, launcher: wire.LaunchAddress) -> None:
        self.address = str(settings.plane_dir() / UPLINK)
        self._share = share
        self._launcher = launcher
        self._relay: NodeAgentProcess | None = None

    @property
    def has_relay(self) -> bool:
        """Tell whether a relay of ours is there."""
        return self._relay is not None and self._relay.is_there

    def settle(self, address: str) -> None:
        """Take notice of where ranks speak to the plane; on another host it is through our own."""
        if address:
            self.address = address
        elif self._relay is None:
            self._relay = NodeAgentProcess(self._share, self._launcher)
            self.address = str(self._relay.address)

    def start(self) -> None:
        """Have the relay that ranks need, if they do."""
        if self._relay is not None:
            self._relay.start()

    def look(self, ended: Sequence[tuple[int, int]] = ()) -> str:
        """Look after the relay, given children that ended; return what there is to say of it."""
        return self._relay.look(ended) if self._relay is not None else ""

    def waits(self) -> list[float]:
        """Return in how many seconds there is something to do, if there is."""
        again = self._relay.patience if self._relay is not None else None
        return [] if again is None else [again]

    def leave(self, at_once: bool) -> float:
        """Have the relay leave for good; return how long that may take."""
        return self._relay.leave(at_once) if self._relay is not None else 0.0
