"""Where the ranks of a node speak to the plane: at its own agent, or at a relay that we keep."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from torchloom import settings
from torchloom.launch import wire
from torchloom.launch.host.descendants import JobShare
from torchloom.launch.host.restarter import RestartedProcess
from torchloom.launch.host.sockets import UPLINK
from torchloom.launch.keeper.spawn import SpawnOrder, spawn
from torchloom.unix import make_private

_MOST_ENDS = 5  # in a row after which it is worth a word
_SHUTDOWN_LIMIT = 4.0  # seconds to bring away what is on its disk
_MOST_LOG = 4 << 20  # bytes


class NodeAgentProcess(RestartedProcess):
    """The relay of one job on this node, once it is wanted."""

    def __init__(self, share: JobShare, launcher: wire.LaunchAddress) -> None:
        super().__init__()
        self._share = share
        self._launcher = launcher
        self._folder = settings.runtime_dir() / share.app_id / share.node

    @property
    def address(self) -> Path:
        """Where ranks of this node speak to the plane."""
        return self._folder / UPLINK

    @property
    def is_there(self) -> bool:
        return self.pid is not None

    def look(self, ended: Iterable[tuple[int, int]] = ()) -> str:
        """Take note of children that ended, start what is due; return what there is to report."""
        before = self.ends
        for pid, status in ended:
            if pid == self.pid:
                self.note_end(status)
        self.restart_if_due()
        if self.ends == before or self.ends != _MOST_ENDS:
            return ""
        log = _log_path(self._share.node)
        return f"the plane's agent there is not running: {self.how}; see {log}"

    def leave(self, at_once: bool) -> float:
        """Have it leave for good; return how long that may take."""
        self.give_up()
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL if at_once else signal.SIGTERM)
        return _SHUTDOWN_LIMIT

    def execute(self) -> int:
        from torchloom.bus import subjects  # most nodes need none

        for folder in (settings.runtime_dir(), self._folder.parent, self._folder):
            make_private(folder)
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
        again = self._relay.wait if self._relay is not None else None
        return [] if again is None else [again]

    def leave(self, at_once: bool) -> float:
        """Have the relay leave for good; return how long that may take."""
        return self._relay.leave(at_once) if self._relay is not None else 0.0
