"""What the weaver says to a rank, heard in the link's thread: promises, outcomes, welcome."""

import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import get_args

import msgspec

from torchloom.bus.messages import (
    Decided,
    Kind,
    Message,
    Outcome,
    Planned,
    Prepare,
    Ready,
    Refused,
    Value,
    Welcome,
    Write,
)
from torchloom.bus.regrouping import Regrouping
from torchloom.errors import LoomError
from torchloom.worker.threadlet.boundary import Boundary
from torchloom.worker.threadlet.outcome import Outcomes, from_text, open_outcomes, to_text
from torchloom.worker.threadlet.seat import Seat

_UNREACHABLE = (OSError, RuntimeError, LoomError)  # torch's stores raise RuntimeError
_REGROUPING = get_args(Regrouping)

Say = Callable[[Message], None]
Check = Callable[[Kind, dict[str, Value]], None]  # raises what is wrong with a command


class Judge:
    """Asks the generation's store; opened in the link's thread, before the first promise."""

    def __init__(self, seat: Seat, say: Say) -> None:
        self._seat = seat
        self._say = say
        self._outcomes: Outcomes | None = None

    def move_on(self, seat: Seat) -> None:
        """Decide in the store of another generation from now on."""
        self._seat, self._outcomes = seat, None

    def open(self) -> Outcomes:
        """Return the store; raises what the weaver is to be told when there is none."""
        if self._outcomes is None:
            seat = self._seat
            self._outcomes = open_outcomes(seat.store, seat.world_size, seat.generation)
        return self._outcomes

    def write(self, command: str, effective: int | None) -> int | None:
        """Write an outcome unless there is one; return the one that holds, and say it."""
        effective = from_text(self.open().first(f"command/{command}", to_text(effective)))
        self._say(Decided(self._seat.head(), command, effective))
        return effective

    def abort(self, command: str) -> int | None:
        """Do the same for a rank that can wait no longer: a store that is gone decides nothing."""
        try:
            return self.write(command, None)
        except _UNREACHABLE as error:
            sys.stderr.write(f"loom: no outcome for a command, it is dropped here: {error}\n")
            return None

    def agree(self, changes: tuple[Planned, ...]) -> tuple[Planned, ...]:
        """Return what the first rank that came here was told; nothing where they cannot ask."""
        try:
            mine = msgspec.json.encode(changes).decode()
            found = self.open().first("changes", mine)
            return msgspec.json.decode(found, type=tuple[Planned, ...])
        except (*_UNREACHABLE, msgspec.MsgspecError, TypeError, ValueError) as error:
            sys.stderr.write(f"loom: knobs begin as the program has them: {error}\n")
            return ()


class Control:
    """Answers the weaver for this rank."""

    def __init__(
        self,
        seat: Seat,
        boundary: Boundary,
        judge: Judge,
        check: Check,
        say: Say,
    ) -> None:
        self.dropped: Counter[str] = Counter()
        self.changes: tuple[Planned, ...] = ()
        self.welcomed = threading.Event()
        self.regrouped: Callable[[Message], None] | None = None  # hears of changes of members
        self._seat = seat
        self._head = seat.head()
        self._boundary = boundary
        self._judge = judge
        self._check = check
        self._say = say

    def move_on(self, seat: Seat) -> None:
        """Answer for another generation from now on."""
        self._seat, self._head = seat, seat.head()

    def hear(self, message: Message) -> None:
        """Do what a message asks for; one for another life of the rank is dropped and counted."""
        if isinstance(message, _REGROUPING) and self.regrouped is not None:
            if self._seat.is_named(message.head):
                self.regrouped(message)
            return
        if not self._seat.is_meant(message.head):
            self.dropped["foreign"] += 1
            return
        match message:
            case Prepare():
                self._prepare(message)
            case Write():
                self._write(message)
            case Outcome():
                self._boundary.settle(message.command, message.effective)
            case Welcome() if not self.welcomed.is_set():
                self.changes = message.changes
                self.welcomed.set()

    def _prepare(self, message: Prepare) -> None:
        try:
            self._check(message.kind, message.payload)
            self._judge.open()
        except (LoomError, OSError) as error:
            self._say(Refused(self._head, message.command, str(error)))
            return
        order = self._boundary.promise(message.command, message.kind, message.payload)
        if order is None:
            known = self._boundary.outcome(message.command)
            self._say(Decided(self._head, message.command, known))
        else:
            self._say(Ready(self._head, message.command, order.step, order.ahead))

    def _write(self, message: Write) -> None:
        try:
            effective = self._judge.write(message.command, message.effective)
        except _UNREACHABLE as error:  # then whoever reaches its limit decides
            sys.stderr.write(f"loom: cannot write the outcome of a command: {error}\n")
        else:
            self._boundary.settle(message.command, effective)
