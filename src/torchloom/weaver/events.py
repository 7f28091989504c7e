"""How the parts of a weaver speak: to each other, to those who watch the events, and to ranks.

A part publishes what other parts must know of; `service.py` lists which part handles what.
Handlers run at once, in the publisher's transaction if there is one. The journal stores events of
`state` and wakes their watchers. The sender sends messages to agents, and through them to ranks;
what must arrive, the rules repeat.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from torchloom.bus import subjects
from torchloom.bus.api import Bus, BusLost, TooLong
from torchloom.bus.codec import encode
from torchloom.messages.membership import MembershipReport
from torchloom.messages.plane import (
    NO_RANK,
    VERSION,
    Event,
    Head,
    Hello,
    Message,
    Metrics,
    Register,
)
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import EventRow, JobRow, Json, RankProcessRow


@dataclass(frozen=True, slots=True)
class UnknownJobRequested:
    """A client names a job that has no row. Its run folder may exist."""

    job: str


@dataclass(frozen=True, slots=True)
class JobChanged:
    """A job was stored, for the first time or with other values."""

    job: JobRow


@dataclass(frozen=True, slots=True)
class JobVacated:
    """A job has ended or was released: its placement is free. Published in the transaction."""

    job: str


@dataclass(frozen=True, slots=True)
class JobStopping:
    """A job was cancelled or stopped on request: the exits of its ranks are intended."""

    job: str


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The run of a job was started, or one was found that had been."""

    job: str


@dataclass(frozen=True, slots=True)
class NodeReported:
    """The agent of a node has registered, with what the node has."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class AgentDown:
    """An agent is silent for too long or has left. Published in the transaction."""

    agent: str


@dataclass(frozen=True, slots=True)
class RankRegistered:
    """A rank has registered, and is stored."""

    rank: RankProcessRow


@dataclass(frozen=True, slots=True)
class RankProcessEnded:
    """The process of a rank has ended."""

    rank: RankProcessRow


@dataclass(frozen=True, slots=True)
class LaunchRegistered:
    """The process that launches a job's ranks has registered through an agent."""

    agent: str
    register: Register


@dataclass(frozen=True, slots=True)
class MemberReported:
    """A rank or a launch process reports on its membership through an agent."""

    agent: str
    message: MembershipReport


@dataclass(frozen=True, slots=True)
class RankEventReceived:
    """An agent forwards an event of a rank, which may be unknown, ended or not the agent's."""

    agent: str
    event: Event


@dataclass(frozen=True, slots=True)
class RankEventReported:
    """A registered rank reports an event through its own agent."""

    rank: RankProcessRow
    event: Event


@dataclass(frozen=True, slots=True)
class MetricsReceived:
    """Metrics of a rank have arrived; they are not stored yet."""

    metrics: Metrics


@dataclass(frozen=True, slots=True)
class RecordsStored:
    """Records of a job were committed to the database."""

    job: str


E = TypeVar("E")
Listener = Callable[[Any], None]
Route = tuple[type, tuple[Listener, ...]]


def on(event: type[E], *listeners: Callable[[E], None]) -> Route:
    """Return one line of the table: an event, and who handles it in which order."""
    return event, listeners


class Dispatcher:
    """Delivers events by a table that is set once, when all parts exist."""

    def __init__(self) -> None:
        self._table: dict[type, tuple[Listener, ...]] = {}

    def connect(self, *routes: Route) -> None:
        """Set the table."""
        assert not self._table, "the table of listeners is set once"
        self._table = dict(routes)

    def publish(self, event: object) -> None:
        """Call the listeners of an event, one after the other."""
        for listener in self._table.get(type(event), ()):
            listener(event)


class BackgroundTasks:
    """Tasks of the parts. The first failure ends the weaver: its memory may differ from its rows.

    A task fails because a later weaver took over, or because the database is lost. The next weaver
    starts from the rows.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._failed = asyncio.Event()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._check)
        return task

    def fail(self, error: BaseException) -> None:
        """End the weaver with an error; only the first one counts."""
        if self.error is None:
            self.error = error
            self._failed.set()

    async def failure(self) -> None:
        """Wait for the first error and raise it."""
        await self._failed.wait()
        assert self.error is not None
        raise self.error

    def _check(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self.fail(error)


class Journal:
    """Appends events. Watchers are only woken; they read from their cursor."""

    def __init__(self, state: StateStore, now: Callable[[], float] = time.time) -> None:
        self._state = state
        self._now = now
        self._woken: set[asyncio.Event] = set()

    def note(
        self,
        kind: str,
        job: str = "",
        *,
        rank: int = -1,
        step: int | None = None,
        author: str = "",
        reason: str = "",
        facts: Json = None,
    ) -> None:
        """Store an event."""
        entry = EventRow(
            time=self._now(),
            job=job,
            kind=kind,
            rank=rank,
            step=step,
            author=author,
            reason=reason,
            facts=facts or {},
        )
        self._state.note(entry)
        self.wake()

    def wake(self) -> None:
        """Have watchers read new events."""
        for woken in self._woken:
            woken.set()

    def watch(self) -> "JournalWatch":
        """Return a watch on new events; the caller closes it."""
        return JournalWatch(self._woken)


class JournalWatch:
    """Wakes one watcher."""

    def __init__(self, woken: set[asyncio.Event]) -> None:
        self._all = woken
        self._event = asyncio.Event()
        woken.add(self._event)

    async def news(self) -> None:
        """Wait for events since the last call."""
        await self._event.wait()
        self._event.clear()

    def close(self) -> None:
        self._all.discard(self._event)


class Sender:
    """Sends messages in the order of `soon`. Those that the bus loses are only counted."""

    def __init__(self, bus: Bus, dropped: Counter[str]) -> None:
        self._bus = bus
        self._dropped = dropped
        self._waiting: asyncio.Queue[tuple[str, Message]] = asyncio.Queue()

    def soon(self, agent: str, message: Message) -> None:
        """Send a message to an agent without waiting."""
        self._waiting.put_nowait((subjects.down(agent), message))

    def answer(self, reply: str, message: Message) -> None:
        """Answer a request without waiting."""
        if reply:
            self._waiting.put_nowait((reply, message))

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._send(*await self._waiting.get())

    async def drain(self) -> None:
        """Send what is queued."""
        while not self._waiting.empty():
            await self._send(*self._waiting.get_nowait())

    async def _send(self, subject: str, message: Message) -> None:
        try:
            await self._bus.publish(subject, encode(message))
        except BusLost:
            self._dropped["unsent"] += 1
        except TooLong:
            self._dropped["unsent_too_long"] += 1


def head_of(rank: RankProcessRow) -> Head:
    """Return the head of a message to one process of a rank."""
    return Head(VERSION, rank.job, rank.generation, rank.rank, rank.incarnation, rank.role)


def own_head(job: str = "") -> Head:
    """Return the head of a message to an agent."""
    return Head(VERSION, job, 0, NO_RANK, "")
