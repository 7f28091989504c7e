"""End a run before its time: at one step and saved where its ranks can be asked, else politely."""

import selectors
import signal
import time
from collections.abc import Callable
from pathlib import Path

from torchloom import settings
from torchloom.launch.host import sockets
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.supervisor.recovery import RecoveryDriver
from torchloom.launch.wire import Connection, WireMessage
from torchloom.rules import replicas
from torchloom.specs.api import AppState

_VERSION = 1  # of questions
_DOOR = "weaver.sock"
_SLACK = 5.0  # seconds between an allocation's start and that of what keeps its time
_STALE = 600.0  # seconds that nothing outlives its allocation: a variable of an older one
LEASH_GRACE = 3.0  # seconds for ranks whose command is gone
TIME_LIMIT = "time_limit"  # of the allocation: its scheduler ends what is in it
_LEAVE = "leave"


class LeaveRequest:
    """One request to the weaver, sent without waiting; `refused` is called if it cannot be met.

    Without a plane there is no weaver to ask, and nothing that would commit what is saved.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        refused: Callable[[], None],
        door: Path | None = None,
    ) -> None:
        self._selector = selector
        self._refused = refused
        self._door = door or settings.plane_dir() / _DOOR
        self._channel: Connection | None = None

    def ask(self, job: str, reason: str, patience: float) -> bool:
        """Ask for the end of a job after its next step; false when there is no plane."""
        try:
            channel = sockets.connect(self._door)
        except OSError:
            return False
        self._channel = Connection(channel, self._selector, self._handle, self._refused)
        question = {"ask": "stop", "version": _VERSION, "job": job, "reason": reason}
        self._channel.send({**question, "wait": patience, "author": settings.user_name()})
        return True

    def _handle(self, answer: WireMessage, _fds: list[int]) -> None:
        if "error" in answer:
            self._refused()


class Cancellation:
    """What is asked of a run from without, and the grace that its ranks have for it."""

    def __init__(
        self,
        folder: RunFolder,
        selector: selectors.BaseSelector,
        ruling: RecoveryDriver,
        deadline: int = 0,
    ) -> None:
        self._folder = folder
        self._selector = selector
        self._ruling = ruling
        self._deadline = deadline

    def ask(self, at_once: bool) -> None:
        """Do what a cancel request says; without one the run is ended all the same."""
        ruling, asked = self._ruling, self._folder.cancel_request()
        ruling.polite = int(asked.get("signal") or signal.SIGTERM)
        if at_once:
            ruling.grace = 0.0
            for key in ruling.stopping():
                ruling.send_stop(key)
        reason = str(asked.get("reason") or "agent_terminated")
        if not at_once and self._asked_to_leave(reason):
            ruling.take(replicas.Leaving(reason, _state(reason)))
        else:
            self._end_politely(reason)

    def launcher_lost(self) -> None:
        """The process that launched the app is gone: end the app."""
        self._ruling.grace = min(self._ruling.grace, LEASH_GRACE)
        reason = TIME_LIMIT if is_over(self._deadline) else "launcher_lost"
        self._ruling.take(replicas.Cancelled(reason, _state(reason)))

    def _asked_to_leave(self, reason: str) -> bool:
        """Have ranks that save do so and leave at one step; false when they cannot be asked."""
        ruling, grace = self._ruling, self._ruling.grace
        is_first = _LEAVE not in ruling.later and ruling.state.verdict is None
        if not is_first or not ruling.live_ranks.alive or not grace or not ruling.saved.may_exist:
            return False
        parting = LeaveRequest(self._selector, self._end_politely)
        if not parting.ask(self._folder.app_id, reason, grace):
            return False
        ruling.later.put(_LEAVE, grace, self._end_politely)
        return True

    def _end_politely(self, reason: str = "agent_terminated") -> None:
        self._ruling.later.drop(_LEAVE)
        # what was said first stands
        self._ruling.take(replicas.Cancelled(reason, _state(reason)))


def is_over(deadline: int) -> bool:
    """Tell whether an allocation ends about now; its own clock started a little before ours."""
    return -_STALE < deadline - time.time() <= _SLACK


def _state(reason: str) -> AppState:
    return AppState.FAILED if reason == TIME_LIMIT else AppState.CANCELLED
