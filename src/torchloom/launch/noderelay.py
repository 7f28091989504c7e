"""Have an agent of the plane on a node that is not the plane's, for as long as a job is there.

It is a process beside the job's own agent and ends with it; what ranks say meanwhile waits in them,
and what it had taken is on its disk when it comes again.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from torchloom import settings
from torchloom.bus import subjects
from torchloom.launch import link
from torchloom.launch.descendants import Share
from torchloom.launch.sockets import UPLINK
from torchloom.launch.spawn import Order, spawn
from torchloom.unix import make_private

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # seconds before it is started again
_LIVED = 10.0  # seconds after which an end is bad luck, not a fault that will come again
_MOST_ENDS = 5  # in a row after which it is worth a word
_FAREWELL = 4.0  # seconds to bring away what is on its disk
_MOST_LOG = 4 << 20  # bytes


class NodeRelay:
    """The relay of one job on this node, once it is wanted."""

    def __init__(self, share: Share, launcher: link.Address) -> None:
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
        return _FAREWELL

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
        name = subjects.agent_of_job(self._share.node, self._share.app_id)
        words = (sys.executable, "-P", "-m", "torchloom.launch.relay")
        places = ("--through", str(self._launcher), "--runtime", str(self._folder))
        argv = (*words, *places, "--agent", name, "--node", self._share.node)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        log = _log_of(self._share.node)
        try:
            return spawn(Order(argv, settings.environment(), os.sep, (null, log, log)))
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
