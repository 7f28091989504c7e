"""End a run before its time: at one step and saved where its ranks can be asked, else politely."""

import selectors
import signal

from torchloom.launch.folder import RunFolder
from torchloom.launch.parting import Parting
from torchloom.launch.ruling import Ruling
from torchloom.rules import happening

LEASH_GRACE = 3.0  # seconds for ranks whose command is gone
_LEAVE = "leave"


class Cancelling:
    """What is asked of a run from without, and the grace that its ranks have for it."""

    def __init__(self, folder: RunFolder, selector: selectors.BaseSelector, ruling: Ruling) -> None:
        self._folder = folder
        self._selector = selector
        self._ruling = ruling

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
            ruling.take(happening.Leaving(reason))
        else:
            self._end_politely(reason)

    def launcher_lost(self) -> None:
        """Whoever launched the app is gone, and the app with it."""
        self._ruling.grace = min(self._ruling.grace, LEASH_GRACE)
        self._ruling.take(happening.Cancelled("launcher_lost"))

    def _asked_to_leave(self, reason: str) -> bool:
        """Have ranks that save do so and leave at one step; false when they cannot be asked."""
        ruling, grace = self._ruling, self._ruling.grace
        is_first = _LEAVE not in ruling.later and ruling.state.verdict is None
        if not is_first or not ruling.crew.alive or not grace or not ruling.saved.may_exist:
            return False
        parting = Parting(self._selector, self._end_politely)
        if not parting.ask(self._folder.app_id, reason, grace):
            return False
        ruling.later.put(_LEAVE, grace, self._end_politely)
        return True

    def _end_politely(self, reason: str = "agent_terminated") -> None:
        self._ruling.later.drop(_LEAVE)
        self._ruling.take(happening.Cancelled(reason))  # what was said first stands
