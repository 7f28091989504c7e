"""Ask the plane to have the ranks of a run save and leave at one step, before anybody ends them."""

import selectors
from collections.abc import Callable
from pathlib import Path

from torchloom import settings
from torchloom.launch import sockets
from torchloom.launch.frames import Connection, Message

_VERSION = 1  # of questions
_DOOR = "weaver.sock"


class Parting:
    """One question to the weaver, asked without waiting; `refused` is called if it is in vain.

    Without a plane nobody can be asked, and there is nothing that would commit what is saved.
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
        """Ask for the end of a job after its next step; false when there is nobody to ask."""
        try:
            channel = sockets.connect(self._door)
        except OSError:
            return False
        self._channel = Connection(channel, self._selector, self._hear, self._refused)
        question = {"ask": "stop", "version": _VERSION, "job": job, "reason": reason}
        self._channel.send({**question, "wait": patience, "author": settings.user_name()})
        return True

    def _hear(self, answer: Message, _fds: list[int]) -> None:
        if "error" in answer:
            self._refused()
