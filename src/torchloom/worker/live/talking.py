"""What a rank and the weaver say to each other about who trains, beside the records of the link.

None of it is kept or counted. A word that is lost with a connection is said again by whoever waits
for an answer; one that is to be known for as long as it holds is said again by itself.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

from torchloom.bus.codec import frame
from torchloom.bus.messages import Message
from torchloom.bus.regrouping import Go, Regroup, Transfer

EVERY = 5.0  # seconds between two tellings of what holds
_MOST = 64  # words that wait for a connection; the newest ones count


class Words:
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


class Line:
    """Both directions for the training thread, which waits here for what the link's thread hears.

    `over` is called in the link's thread when a newer generation than any before is heard of.
    """

    def __init__(
        self, words: Words, generation: int, over: Callable[[int], None] = lambda _: None
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
            is_news = generation > self.newest and isinstance(message, Regroup | Transfer | Go)
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
