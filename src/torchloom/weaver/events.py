"""What the parts of a weaver share: typed events with their dispatcher, and background tasks.

A part publishes what other parts must know of; `service.py` lists which part handles what.
Handlers run at once, in the publisher's transaction if there is one.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from torchloom.messages.membership import MembershipReport
from torchloom.messages.plane import Event, Hello, Metrics, Register
from torchloom.weaver.store.rows import JobRow, RankProcessRow


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
