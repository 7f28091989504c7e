"""A rank's side of the membership protocol: what it sends, and what it waits for.

It decides nothing but what caused an exception. A request is repeated every half second until it is
answered, or until a newer generation is announced.
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
from torchloom.rules.membership.faults import PATIENCE, FaultOwner, GenerationNews, fault_owner

EVERY = 5.0  # seconds after which a standing message is sent again
_MOST = 64  # messages that wait for a connection; older ones are dropped
RESEND = 0.5
ALONE = 60.0  # seconds without an answer, after which a rank leaves the end of its loop
_LONGEST = 500  # characters of why


class MembershipOutbox:
    """Messages to be sent; the link's thread takes them out."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._frames: deque[bytes] = deque(maxlen=_MOST)
        self._standing: bytes | None = None
        self._resend_at = 0.0

    # In any thread.

    def send(self, message: Message) -> None:
        """Send a message soon; never waits."""
        self._frames.append(frame(message))
        self._wake()

    def keep_sending(self, message: Message | None) -> None:
        """Send a message again and again, until another one, or None, replaces it."""
        self._standing = None if message is None else frame(message)
        self._resend_at = time.monotonic() + EVERY
        if message is not None:
            self.send(message)

    def repeat(self) -> None:
        """Send the standing message once more."""
        self._append_standing()
        self._wake()

    # In the link's thread.

    def connected(self) -> None:
        """Start a connection: what was to be sent on the one before is outdated."""
        self._frames.clear()
        self._append_standing()

    def resend_if_due(self) -> None:
        """Send the standing message again, now and then."""
        if self._standing is not None and time.monotonic() >= self._resend_at:
            self._append_standing()

    def take(self) -> bytes | None:
        """Return the frame to be sent now, if there is one."""
        return self._frames.popleft() if self._frames else None

    def __bool__(self) -> bool:
        return bool(self._frames)

    def _append_standing(self) -> None:
        standing = self._standing
        self._resend_at = time.monotonic() + EVERY
        if standing is not None:
            self._frames.append(standing)


class MembershipLink:
    """Both directions for the training thread, which waits for what the link's thread receives.

    `on_newer` is called in the link's thread when a newer generation than any before is announced.
    """

    def __init__(
        self,
        outbox: MembershipOutbox,
        generation: int,
        on_newer: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.newest = generation  # that was announced
        self.training = -1  # the one that this rank trains in
        self._on_newer = on_newer
        self._outbox = outbox
        self.send = outbox.send
        self.keep_sending = outbox.keep_sending
        self._received: deque[Message] = deque(maxlen=_MOST)
        self._changed = threading.Condition()

    def watch(self, on_newer: Callable[[int], None]) -> None:
        """Call this when a newer generation is announced."""
        self._on_newer = on_newer

    def receive(self, message: Message) -> None:
        """Handle a message of the weaver; those of older generations are dropped."""
        generation = message.head.generation
        if isinstance(message, Go) and generation == self.training:
            self._outbox.repeat()  # our report was lost
            return
        with self._changed:
            if generation < self.newest:
                return
            is_news = generation > self.newest and isinstance(
                message, JoinGeneration | Transfer | Go
            )
            if is_news:
                self.newest = generation
                self._received.clear()
            self._received.append(message)
            self._changed.notify_all()
        if is_news:
            self._on_newer(generation)

    def next(self, timeout: float) -> Message | None:
        """Return the next message; None after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._received), max(0.0, timeout))
            return self._received.popleft() if self._received else None

    def forget(self) -> None:
        """Drop what was received before a request is sent."""
        with self._changed:
            self._received.clear()


class MembershipPort(Protocol):
    """What a member needs of a `MembershipLink`."""

    newest: int
    training: int

    def send(self, message: Message) -> None: ...
    def keep_sending(self, message: Message | None) -> None: ...
    def next(self, timeout: float) -> Message | None: ...
    def forget(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RankPosition:
    """How far a rank is between two generations."""

    applied: int | None
    pages: tuple[int, ...] = ()
    why: str = ""


class Member:
    """One process of a rank among those that train."""

    def __init__(
        self,
        link: MembershipPort,
        head: Head,
        is_new: bool = False,
        clock: Callable[[], float] = time.monotonic,
        is_known: Callable[[], bool] = lambda: True,
    ) -> None:
        self.link = link
        self._is_known = is_known  # whether a weaver has ever sent something to this rank
        self.generation = head.generation - 1 if is_new else head.generation
        self._head = head
        self._clock = clock

    @property
    def is_over(self) -> bool:
        """Return whether a newer generation is announced than the one this rank is in."""
        return self.link.newest > self.generation

    def train(self, step: int, why: str = "") -> None:
        """Report that this rank trains from a step on; repeated, since there is no answer."""
        self.link.training = self.generation
        self.link.keep_sending(Training(self._at(self.generation), step, why[:_LONGEST]))

    def fault_owner(self, step: int, is_collective: bool, why: str) -> FaultOwner:
        """Ask what caused an exception, and wait until that is known."""
        link, begun = self.link, self._clock()
        message = Broke(self._at(self.generation), step, is_collective, why[:_LONGEST])
        link.forget()
        news, sent = GenerationNews.NOTHING, -RESEND
        while True:
            news = GenerationNews.OVER if self.is_over else news
            waited = self._clock() - begun
            if (verdict := fault_owner(news, waited, is_collective)) is not FaultOwner.OPEN:
                return verdict
            if waited - sent >= RESEND:
                link.send(message)
                sent = waited
            left = PATIENCE - waited
            if isinstance(link.next(min(RESEND, left) if left > 0 else RESEND), LetStand):
                news = GenerationNews.STANDS

    def meet(self, position: Callable[[], RankPosition]) -> Transfer:
        """Report this rank's position for the newest generation, until it gets its part."""
        self.link.keep_sending(None)
        while True:
            generation, now = max(self.link.newest, self.generation), position()
            message = Arrived(self._at(generation), now.applied, now.pages, now.why[:_LONGEST])
            answer = self._request(message, Transfer)
            if isinstance(answer, Transfer):
                self.generation = answer.head.generation
                return answer

    def is_restored(self, seconds: float, taken: int) -> bool:
        """Report that this rank has all it needs; return whether it may train."""
        message = Restored(self._at(self.generation), seconds, taken)
        return self._request(message, Go) is not None

    def refuse(self, why: str) -> None:
        """Report that this rank could not take what it was given, until the next generation."""
        self._request(NotRestored(self._at(self.generation), why[:_LONGEST]))

    def has_finished(self, step: int) -> bool:
        """Report that no step is left; return whether that is so for all, or no weaver answers.

        Otherwise one of the others is lost, and this rank is needed.
        """
        self.link.keep_sending(None)
        self.link.forget()
        message = Finished(self._at(self.generation), step)
        self._request(message, Release, patience=ALONE if self._is_known() else PATIENCE)
        return not self.is_over

    def leave(self, step: int) -> None:
        """Report that the program has left its loop by itself, and does not wait for the others."""
        self.link.training = -1
        self.link.keep_sending(Finished(self._at(self.generation), step))

    def decline(self, generation: int, why: str) -> None:
        """Report that this rank cannot be a member of a generation; in the link's thread, too."""
        self.link.keep_sending(Arrived(self._at(generation), None, (), why[:_LONGEST]))

    def _request(
        self, message: Message, *answers: type[Message], patience: float = float("inf")
    ) -> Message | None:
        """Send a message until it is answered; None when a newer generation is announced."""
        link, deadline = self.link, self._clock() + patience
        generation = message.head.generation
        while link.newest <= generation and (now := self._clock()) < deadline:
            link.send(message)
            again = now + RESEND
            while link.newest <= generation and (left := again - self._clock()) > 0:
                answer = link.next(left)
                if isinstance(answer, answers) and answer.head.generation == generation:
                    return answer
        return None

    def _at(self, generation: int) -> Head:
        return msgspec.structs.replace(self._head, generation=generation)
