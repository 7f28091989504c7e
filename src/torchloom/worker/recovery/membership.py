"""A rank's part in the talk about who trains: what it says, what it waits for, whom it believes.

It decides nothing but whose an exception is. Whatever waits here is said again every half second,
and ends as soon as a newer generation is heard of.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from torchloom.bus.codec import frame
from torchloom.messages.membership import (
    Arrived,
    Broke,
    Finished,
    Go,
    JoinGeneration,
    LetStand,
    NotRestored,
    Release,
    Restored,
    Training,
    Transfer,
)
from torchloom.messages.plane import Head, Message
from torchloom.rules.membership.faults import PATIENCE, FaultOwner, GenerationNews, whose

EVERY = 5.0  # seconds between two tellings of what holds
_MOST = 64  # words that wait for a connection; the newest ones count
RESEND = 0.5
ALONE = 60.0  # seconds without a word of a weaver, after which the end of a loop is gone past
_LONGEST = 500  # characters of why


class MembershipOutbox:
    """What is to be said; the link's thread takes it out."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._frames: deque[bytes] = deque(maxlen=_MOST)
        self._standing: bytes | None = None
        self._next_telling = 0.0

    # Anybody.

    def say(self, message: Message) -> None:
        """Have a word sent at once; never waits."""
        self._frames.append(frame(message))
        self._wake()

    def hold(self, message: Message | None) -> None:
        """Say a word, and go on saying it until another takes its place, or none."""
        self._standing = None if message is None else frame(message)
        self._next_telling = time.monotonic() + EVERY
        if message is not None:
            self.say(message)

    def repeat(self) -> None:
        """Say once more what holds."""
        self._tell()
        self._wake()

    # The link's thread.

    def connected(self) -> None:
        """Begin a connection: what was to be said on the one before is old."""
        self._frames.clear()
        self._tell()

    def look(self) -> None:
        """Say again what holds, now and then."""
        if self._standing is not None and time.monotonic() >= self._next_telling:
            self._tell()

    def take(self) -> bytes | None:
        """Return the word to be sent now, if there is one."""
        return self._frames.popleft() if self._frames else None

    def __bool__(self) -> bool:
        return bool(self._frames)

    def _tell(self) -> None:
        standing = self._standing
        self._next_telling = time.monotonic() + EVERY
        if standing is not None:
            self._frames.append(standing)


class MembershipLine:
    """Both directions for the training thread, which waits here for what the link's thread hears.

    `over` is called in the link's thread when a newer generation than any before is heard of.
    """

    def __init__(
        self, words: MembershipOutbox, generation: int, over: Callable[[int], None] = lambda _: None
    ) -> None:
        self.newest = generation  # generation that was heard of
        self.training = -1  # the one that this rank trains in
        self.over = over
        self._words = words
        self.say = words.say
        self.hold = words.hold
        self._heard: deque[Message] = deque(maxlen=_MOST)
        self._changed = threading.Condition()

    def hear(self, message: Message) -> None:
        """Take in what the weaver says; of older generations nothing counts."""
        generation = message.head.generation
        if isinstance(message, Go) and generation == self.training:
            self._words.repeat()  # our word that we do was lost
            return
        with self._changed:
            if generation < self.newest:
                return
            is_news = generation > self.newest and isinstance(
                message, JoinGeneration | Transfer | Go
            )
            if is_news:
                self.newest = generation
                self._heard.clear()
            self._heard.append(message)
            self._changed.notify_all()
        if is_news:
            self.over(generation)

    def next(self, timeout: float) -> Message | None:
        """Return what was heard next; nothing after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._heard), max(0.0, timeout))
            return self._heard.popleft() if self._heard else None

    def forget(self) -> None:
        """Let go of what was heard before a question is asked."""
        with self._changed:
            self._heard.clear()


class MembershipPort(Protocol):
    """Both directions of the talk; see `talking.Line`."""

    newest: int
    training: int

    def say(self, message: Message) -> None: ...
    def hold(self, message: Message | None) -> None: ...
    def next(self, timeout: float) -> Message | None: ...
    def forget(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RankStanding:
    """Where a rank stands between two generations."""

    applied: int | None
    pages: tuple[int, ...] = ()
    why: str = ""


class Member:
    """One process of a rank among those that train."""

    def __init__(
        self,
        line: MembershipPort,
        head: Head,
        is_new: bool = False,
        clock: Callable[[], float] = time.monotonic,
        is_known: Callable[[], bool] = lambda: True,
    ) -> None:
        self.line = line
        self._is_known = is_known  # whether a weaver has ever said a word to this rank
        self.generation = head.generation - 1 if is_new else head.generation
        self._head = head
        self._clock = clock

    @property
    def is_over(self) -> bool:
        """Tell whether a newer generation is called together than the one this rank is in."""
        return self.line.newest > self.generation

    def train(self, step: int, why: str = "") -> None:
        """Say that this rank trains from a step on; said on and on, since nobody answers."""
        self.line.training = self.generation
        self.line.hold(Training(self._at(self.generation), step, why[:_LONGEST]))

    def whose(self, step: int, is_collective: bool, why: str) -> FaultOwner:
        """Ask whose an exception is, and wait until that is known."""
        line, begun = self.line, self._clock()
        word = Broke(self._at(self.generation), step, is_collective, why[:_LONGEST])
        line.forget()
        heard, said = GenerationNews.NOTHING, -RESEND
        while True:
            heard = GenerationNews.OVER if self.is_over else heard
            waited = self._clock() - begun
            if (verdict := whose(heard, waited, is_collective)) is not FaultOwner.OPEN:
                return verdict
            if waited - said >= RESEND:
                line.say(word)
                said = waited
            left = PATIENCE - waited
            if isinstance(line.next(min(RESEND, left) if left > 0 else RESEND), LetStand):
                heard = GenerationNews.STANDS

    def meet(self, standing: Callable[[], RankStanding]) -> Transfer:
        """Say where this rank stands for the newest generation, until it is told how to go on."""
        self.line.hold(None)
        while True:
            generation, now = max(self.line.newest, self.generation), standing()
            word = Arrived(self._at(generation), now.applied, now.pages, now.why[:_LONGEST])
            heard = self._insist(word, Transfer)
            if isinstance(heard, Transfer):
                self.generation = heard.head.generation
                return heard

    def is_restored(self, seconds: float, taken: int) -> bool:
        """Say that this rank has all it needs; tell whether it may train: not if others broke."""
        word = Restored(self._at(self.generation), seconds, taken)
        return self._insist(word, Go) is not None

    def refuse(self, why: str) -> None:
        """Say that this rank could not take what it was given, until the next generation."""
        self._insist(NotRestored(self._at(self.generation), why[:_LONGEST]))

    def has_finished(self, step: int) -> bool:
        """Say that no step is left; tell whether that is so for all, or nobody can be asked.

        Otherwise one of the others is lost, and this rank is needed.
        """
        self.line.hold(None)
        self.line.forget()
        word = Finished(self._at(self.generation), step)
        self._insist(word, Release, patience=ALONE if self._is_known() else PATIENCE)
        return not self.is_over

    def leave(self, step: int) -> None:
        """Say that the program goes on behind its steps by itself: it waits for nobody."""
        self.line.training = -1
        self.line.hold(Finished(self._at(self.generation), step))

    def excuse(self, generation: int, why: str) -> None:
        """Say that this rank cannot be a member of a generation; in the link's thread, too."""
        self.line.hold(Arrived(self._at(generation), None, (), why[:_LONGEST]))

    def _insist(
        self, word: Message, *answers: type[Message], patience: float = float("inf")
    ) -> Message | None:
        """Say a word until it is answered; nothing when a newer generation is called together."""
        line, deadline = self.line, self._clock() + patience
        generation = word.head.generation
        while line.newest <= generation and (now := self._clock()) < deadline:
            line.say(word)
            again = now + RESEND
            while line.newest <= generation and (left := again - self._clock()) > 0:
                heard = line.next(left)
                if isinstance(heard, answers) and heard.head.generation == generation:
                    return heard
        return None

    def _at(self, generation: int) -> Head:
        return msgspec.structs.replace(self._head, generation=generation)
