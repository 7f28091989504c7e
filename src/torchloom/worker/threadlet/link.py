"""The link of a rank to its node's agent: one thread, one unix socket; no step ever waits for it.

Messages to send are queued and wake the thread; received ones are passed to `handle` in this
thread. Records stay in a bounded queue until the agent has stored them, and are sent again on a
new connection. A full queue drops the oldest metrics first and counts them.
"""

import contextlib
import os
import select
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from torchloom.bus.codec import LONGEST_FRAME, Frames, MessageReader, frame
from torchloom.messages.plane import (
    Event,
    Frame,
    Head,
    Kept,
    Message,
    Metrics,
    OwnStacks,
    Register,
    ShowStacks,
    Thread,
    ToRank,
    Value,
)
from torchloom.unix import reachable, received, same_user
from torchloom.worker.recovery.membership import MembershipOutbox

_DEPTH = 64  # innermost calls of a stack that are sent
_THREADS = 64
TICK = 0.5  # seconds between two collections of logged values: each costs training time
_RETRY = 0.25
_SOON = 0.01  # seconds between two checks whether all is sent
_CONNECT = 1.0
_CLOSE = 1.0  # seconds to send the rest at the end
_CHUNK = 1 << 16
_MOST_BYTES = 32 << 20  # queued while the agent is away


def own_stacks(head: Head, request: str) -> OwnStacks:
    """Return the stacks of all threads but the calling one."""
    main, here = threading.main_thread().ident, threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)
    threads = (
        Thread(names.get(number, ""), number == main, _frames(frame))
        for number, frame in found[:_THREADS]
        if number != here
    )
    return OwnStacks(head, request, tuple(threads))


def _frames(innermost: FrameType) -> tuple[Frame, ...]:
    found: list[Frame] = []
    frame: FrameType | None = innermost
    while frame is not None and len(found) < _DEPTH:
        code = frame.f_code
        found.append(Frame(code.co_qualname, code.co_filename, frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(found)


class FrameQueue:
    """Frames until the agent has stored them; metrics are dropped before other records.

    The agent counts what it stores. So frames are dropped before they are sent or after they are
    stored, never in between: both sides would count differently.
    """

    def __init__(self, most: int = _MOST_BYTES) -> None:
        self.lost = 0  # metric points that a full queue dropped
        self._most = most
        self._frames: deque[tuple[bytes, int]] = deque()
        self._bytes = 0
        self._sent = 0  # frames at the head that were sent on this connection
        self._kept = 0  # frames removed from here, as the agent counts

    @property
    def next(self) -> bytes | None:
        """Return the next frame to send, if there is one."""
        return self._frames[self._sent][0] if self._sent < len(self._frames) else None

    @property
    def is_empty(self) -> bool:
        """Tell whether the agent has stored everything."""
        return not self._frames

    def put(self, data: bytes, points: int = 0) -> None:
        """Add a frame with this many metric points; 0 for records that must not be lost."""
        if self._bytes + len(data) > self._most:
            self._make_room()
        self._frames.append((data, points))
        self._bytes += len(data)

    def sent(self) -> None:
        """Record that the next frame was sent completely."""
        self._sent += 1

    def kept(self, upto: int) -> None:
        """Remove the frames that the agent has stored."""
        for _ in range(min(upto - self._kept, len(self._frames))):
            self._bytes -= len(self._frames.popleft()[0])
            self._sent = max(0, self._sent - 1)
        self._kept = upto

    def again(self) -> None:
        """Send everything that is not stored again, on a new connection."""
        self._sent = 0

    def _make_room(self) -> None:
        """Drop the older half of the unsent metrics."""
        unsent = range(self._sent + 1, len(self._frames))  # the first may be half sent
        numbers = [at for at in unsent if self._frames[at][1]]
        for at in reversed(numbers[: (len(numbers) + 1) // 2]):
            self.lost += self._frames[at][1]
            self._bytes -= len(self._frames[at][0])
            del self._frames[at]


class AgentLink:
    """The thread of the link. At every tick, `collect` returns what was logged since the last one.

    Between ticks it wakes only to send and to receive.
    """

    def __init__(
        self,
        address: str,
        register: Callable[[], Register],
        handle: Callable[[Message], None],
        collect: Callable[[], Iterable[Message]],
        broken: Callable[[BaseException], None],
        mend: Callable[[Metrics], Metrics],
    ) -> None:
        self.dropped: Counter[str] = Counter()
        self._address = address
        self._register = register
        self._handle = handle
        self._collect = collect
        self._broken = broken
        self._mend = mend  # replaces values that cannot be sent
        self._outgoing: deque[Message] = deque(maxlen=1 << 14)
        self._queue = FrameQueue()
        self._sending: bytes | None = None  # a partly sent frame
        self._sent = 0
        self._welcome = False  # whether the agent has reported what it has stored
        self._reported = 0  # lost points that were reported
        self._hello: bytes | None = None  # a Register to send: not a record, so not counted
        self._stacks: bytes | None = None  # requested; not a record either
        self.membership = MembershipOutbox(self.wake)  # not records either
        self._introduced = True  # whether the agent has the latest Register
        self._reader: MessageReader[Any] = MessageReader(ToRank, self.dropped)
        self._frames = Frames(self.dropped)
        self._socket: socket.socket | None = None
        self._next_try = 0.0
        self._next_tick = 0.0
        self._ticks = 0
        self._closing = False
        self._last: Message
        self._wake_in, self._wake_out = socket.socketpair()
        for end in (self._wake_in, self._wake_out):
            end.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="loom-link", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, message: Message) -> None:
        """Queue a message and wake the thread, unless it is the caller; never blocks."""
        self._outgoing.append(message)
        if threading.get_ident() != self._thread.ident:
            self.wake()

    def introduce(self) -> None:
        """Register the rank again, after something about it has changed."""
        self._introduced = False
        self.wake()

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # full: the thread is about to wake
            self._wake_in.send(b"\0")

    def flush(self, patience: float) -> bool:
        """Wait until the agent has stored everything so far; tell whether it has."""
        deadline, before = time.monotonic() + patience, self._ticks
        self._next_tick = 0.0
        self.wake()
        while self._ticks == before or self._outgoing or not self._queue.is_empty:
            if time.monotonic() > deadline or not self._thread.is_alive():
                return False
            time.sleep(_SOON)
        return True

    def close(self, last: Message) -> None:
        """Send the rest and a last message, as far as possible within a second."""
        self._last = last
        self._closing = True
        self.wake()
        self._thread.join(_CLOSE)

    def abandon(self) -> None:
        """Close everything in a fork, where the thread does not exist; send nothing."""
        for end in (self._socket, self._wake_in, self._wake_out):
            if end is not None and end.fileno() >= 0:
                os.close(end.detach())

    # In the thread.

    def _run(self) -> None:
        try:
            while not self._closing:
                self._wait()
                self._turn()
            self._turn()
            self._put(self._last)
            self._finish()
        except Exception as error:  # training continues without the agent
            self._broken(error)
        finally:  # here only: `close` may have stopped waiting before
            self._wake_in.close()
            self._wake_out.close()

    def _turn(self) -> None:
        if self._socket is None:
            self._connect()
        self._gather()
        self._send()

    def _wait(self) -> None:
        agent = self._socket
        poll = select.poll()  # select() takes no descriptor above 1023
        poll.register(self._wake_out, select.POLLIN)
        if agent is not None:
            poll.register(agent, select.POLLIN | (select.POLLOUT if self._next() else 0))
        ready = dict(poll.poll(self._patience() * 1000))
        if self._wake_out.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                self._wake_out.recv(_CHUNK)
        if agent is not None and ready.get(agent.fileno(), 0) & ~select.POLLOUT:
            self._receive()

    def _patience(self) -> float:
        """Return the seconds until there is something to do."""
        if self._closing:
            return TICK
        due = self._next_try if self._socket is None else self._next_tick
        return max(0.0, due - time.monotonic())

    def _connect(self) -> None:
        if time.monotonic() < self._next_try:
            return
        self._next_try = time.monotonic() + _RETRY
        agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        agent.settimeout(_CONNECT)
        try:
            with reachable(Path(self._address)) as address:
                agent.connect(address)
            if not same_user(agent):
                raise PermissionError("another user listens there")
            self._introduced = True  # a change from here on is sent again
            self.membership.connected()
            agent.sendall(frame(self._register()))  # before everything else
        except OSError:
            agent.close()
            return
        agent.setblocking(False)
        self._socket = agent
        self._frames = Frames(self.dropped)

    def _gather(self) -> None:
        if not self._introduced and self._socket is not None:
            self._introduced = True
            self._hello = frame(self._register())
        while self._outgoing:  # answers before numbers
            self._put(self._outgoing.popleft())
        if self._closing or time.monotonic() >= self._next_tick:
            self._next_tick = time.monotonic() + TICK
            self.membership.resend_if_due()
            for message in self._collect():
                self._put(message)
            self._ticks += 1
        if self._socket is not None and self._queue.lost > self._reported:
            self._reported = self._queue.lost
            facts: dict[str, Value] = {"points": self._reported}
            self._put(Event(self._register().head, "lost", 0, time.time(), facts))

    def _put(self, message: Message) -> None:
        try:
            data = self._framed(message)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError):
            self.dropped["unsendable"] += 1  # a number of 65 bits, half a character
            return
        if len(data) > LONGEST_FRAME:
            self.dropped["oversized"] += 1
            return
        points = len(message.rows) * len(message.names) if isinstance(message, Metrics) else 0
        self._queue.put(data, points)

    def _framed(self, message: Message) -> bytes:
        try:
            return frame(message)
        except (msgspec.MsgspecError, ValueError, OverflowError):
            if not isinstance(message, Metrics):
                raise
            return frame(self._mend(message))

    def _next(self) -> bytes | None:
        """Return the next frame; records wait until the agent has reported what it has stored."""
        if self._sending is None and self._hello is not None:
            self._sending, self._hello = self._hello, None
        elif self._sending is None and self._stacks is not None:
            self._sending, self._stacks = self._stacks, None
        elif self._sending is None and self._socket is not None and self.membership:
            self._sending = self.membership.take()
        elif self._sending is None and self._welcome:
            self._sending = self._queue.next
        return self._sending

    def _send(self) -> None:
        while self._socket is not None and (data := self._next()) is not None:
            try:
                self._sent += self._socket.send(memoryview(data)[self._sent :])
            except BlockingIOError:
                return
            except OSError:
                self._lose()
                return
            if self._sent == len(data):
                if data is self._queue.next:
                    self._queue.sent()
                self._sending, self._sent = None, 0

    def _receive(self) -> None:
        assert self._socket is not None
        data = received(self._socket, _CHUNK)
        if data is None:
            return
        if not data:
            self._lose()
            return
        for whole in self._frames.feed(data):
            message = self._reader.read(whole)
            if isinstance(message, Kept):
                self._queue.kept(message.upto)
                self._welcome = True
            elif isinstance(message, ShowStacks):
                self._stacks = frame(own_stacks(self._register().head, message.request))
            elif message is not None:
                self._handle(message)

    def _lose(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._sending, self._sent = None, None, 0
        self._welcome, self._hello, self._stacks = False, None, None
        self._queue.again()

    def _finish(self) -> None:
        deadline = time.monotonic() + _CLOSE
        while self._socket is not None and time.monotonic() < deadline:
            if self._welcome and self._queue.next is None:
                break
            self._wait()
            self._send()
        self._lose()
