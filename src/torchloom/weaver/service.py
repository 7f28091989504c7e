"""The weaver as one object: it takes an epoch, listens, lets time pass, and leaves in order."""

import asyncio
import functools
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from torchloom.bus import subjects
from torchloom.bus.api import Bus, Handler, RawMessage, Subscription, Taker
from torchloom.bus.codec import MessageReader
from torchloom.messages.plane import DeviceEvent, Metrics
from torchloom.rules.devices import DeviceState
from torchloom.weaver.account_runs import AccountLauncher
from torchloom.weaver.checkpoints.collection import CheckpointCollector
from torchloom.weaver.checkpoints.requests import CheckpointPruning, CheckpointRequests
from torchloom.weaver.checkpoints.rows import CheckpointRows
from torchloom.weaver.checkpoints.triggers import CheckpointTriggers
from torchloom.weaver.commands.driver import CommandDriver
from torchloom.weaver.commands.guards import Guards
from torchloom.weaver.commands.rows import CommandRows
from torchloom.weaver.health.agents import Agents
from torchloom.weaver.health.devices import DeviceMap, NoAlerts, read_alerts
from torchloom.weaver.health.divergence import LossWatch
from torchloom.weaver.health.hangs import Hangs, StackRequests
from torchloom.weaver.health.liveness import LOOK, AgentLiveness
from torchloom.weaver.health.responses import Responses
from torchloom.weaver.health.roster import Roster
from torchloom.weaver.jobs.coordinator import Coordinator
from torchloom.weaver.jobs.launch import Launcher, RunnerLauncher
from torchloom.weaver.jobs.registry import JobRegistry
from torchloom.weaver.jobs.reports import BatchIngest, RankReports
from torchloom.weaver.jobs.retention import PERIOD, RunRetention
from torchloom.weaver.journal import Journal
from torchloom.weaver.membership.effects import MemberMessages
from torchloom.weaver.membership.live_recovery import LiveRecovery
from torchloom.weaver.runs.experiments import Experiments
from torchloom.weaver.sender import Sender
from torchloom.weaver.store import PlaneStore, StateLost
from torchloom.weaver.store.integrity import LOOK as LOOK_AT_FILES
from torchloom.weaver.store.integrity import DatabaseHealth
from torchloom.weaver.users import People

P = ParamSpec("P")
T = TypeVar("T")

TICK = 0.05  # seconds between two looks at what waits
_READERS = 4  # threads that read the database for a door
_FENCE = 1.0  # seconds between two looks whether a later weaver has begun
_SAVING = 0.5  # seconds between two looks at checkpoints that wait for something
_ROOM = 1.0  # seconds between two looks at what devices that are well can be given to jobs
_log = logging.getLogger(__name__)


class Weaver:
    """All parts, wired. `run` lives until cancelled or superseded; tests call `tick` themselves."""

    def __init__(self, store: PlaneStore, bus: Bus, launcher: Launcher | None = None) -> None:
        self.store = store
        self.bus = bus
        self.started_at = time.time()
        self.host = socket.gethostname()
        state = store.state
        self.epoch = store.take_epoch(self.host, os.getpid())
        self.dropped: Counter[str] = Counter()
        self.journal = Journal(state)
        self.people = People(state, self.journal)
        self.jobs = JobRegistry(state, self.journal, self.dropped)
        self.roster = Roster(state, self.jobs, self.journal, self.dropped)
        self.devices = DeviceMap(state, self.roster.everyone(), self.journal)
        self.sender = Sender(bus, self.dropped)
        self.ledger = CommandRows(state, self.journal)
        self.commands = CommandDriver(self.ledger, self.jobs, self.roster, self.sender)
        self.reports = RankReports(
            self.jobs, self.roster, self.devices, self.commands, self.dropped
        )
        self.responses = Responses(
            state, self.jobs, self.roster, self.devices, self.journal, self.sender
        )
        self.desk = StackRequests(self.roster, self.sender, self.epoch, self.dropped)
        self.hangs = Hangs(self.jobs, self.roster, self.responses, self.journal, self.desk)
        self.watching = AgentLiveness(bus, self.roster)
        self.agents = Agents(
            state,
            self.roster,
            self.devices,
            self.commands,
            self.reports,
            self.watching,
            self.hangs,
            self.sender,
            self.dropped,
        )
        self.ingest = BatchIngest(store, self.reports, self.journal, self.sender, self.dropped)
        self.guards = Guards(
            store, self.jobs, self.roster, self.ledger, self.commands, self.journal
        )
        self.finite = LossWatch(self.jobs, self.journal)
        self.experiments = Experiments(store, self.jobs, self.roster, self.devices, self.host)
        self.coordinator = Coordinator(
            state,
            self.jobs,
            self.roster,
            self.devices,
            self.journal,
            launcher or AccountLauncher(RunnerLauncher(), self.jobs.account),
        )
        self._keep_checkpoints()
        self.regrouping = LiveRecovery(
            state,
            self.jobs,
            self.roster,
            self.reports,
            self.commands,
            self.shelf,
            self.journal,
            MemberMessages(self.roster, self.sender, self.epoch, self.dropped),
            self.dropped,
        )
        self.health = DatabaseHealth(store.place, store.damage, lambda: self.ingest.writer.trouble)
        self.retaining = RunRetention(store, self.jobs, self.journal)
        self.retaining.on_forgotten = self.shelf.forget
        self._device_events: MessageReader[DeviceEvent] = MessageReader(DeviceEvent, self.dropped)
        self._subscriptions: list[Subscription] = []
        self._turns: list[tuple[float, Callable[[], None]]] = [(_FENCE, state.check)]
        self._tasks: list[asyncio.Task[None]] = []
        self._readers = ThreadPoolExecutor(_READERS, "reader")
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connect()

    def _keep_checkpoints(self) -> None:
        """Make the parts that turn what ranks have written into checkpoints."""
        self.shelf = CheckpointRows(self.store.state, self.journal)
        self.errands = CheckpointRequests(
            self.shelf, self.roster, self.sender, self.epoch, self.host, self.dropped
        )
        self.thinning = CheckpointPruning(self.jobs, self.shelf, self.errands)
        self.checkpoints = CheckpointCollector(
            self.store.state,
            self.jobs,
            self.roster,
            self.ledger,
            self.shelf,
            self.errands,
            self.thinning,
            self.dropped,
        )
        self.prompting = CheckpointTriggers(self.jobs, self.ledger, self.commands, self.shelf)

    def _connect(self) -> None:
        """Have the parts tell one another what each must know of."""
        self.reports.listen(self.finite.report)  # before what may end the ranks
        self.reports.listen(self.responses.told)
        self.reports.listen(self.experiments.told)
        self.reports.listen(self.prompting.told)
        self.reports.hear(self.checkpoints.told, self.shelf.settle)
        self.reports.step_of = self.agents.step
        self.reports.on_end(self.hangs.forget)
        self.ingest.on_metrics = self._saw
        self.ingest.on_stored = self.experiments.stored
        self.jobs.on_change = self.experiments.changed
        self.agents.on_rank = self.checkpoints.known
        self.agents.on_node = self.coordinator.rooms.node
        self.agents.on_gone = self.coordinator.rooms.gone
        self.hangs.progress = self.agents.progress
        self.agents.on_task = self.hangs.on_task = self._watch
        self.experiments.on_task = self.retaining.on_task = self._watch
        self.coordinator.on_task(self._watch)
        self._connect_regrouping()
        self.every(_SAVING, self.checkpoints.tick)
        self.every(_ROOM, self.prompting.look)
        self.every(_ROOM, self.coordinator.rooms.look)
        self.every(PERIOD, self.retaining.look_soon)
        self.every(LOOK_AT_FILES, self.health.look)

    def _saw(self, metrics: Metrics) -> None:
        self.finite.saw(metrics)
        self.guards.saw(metrics)

    def _connect_regrouping(self) -> None:
        """Have the parts hear of jobs whose members change while they run."""
        regrouping = self.regrouping
        self.agents.on_talk, self.agents.on_launch = regrouping.take, regrouping.launched
        self.hangs.is_regrouping = regrouping.is_regrouping
        self.responses.live, self.responses.give_up = regrouping.watched, regrouping.given_up
        self.responses.leave_live = self.coordinator.on_cancel = regrouping.close
        self.commands.beginning, self.commands.on_stopped = regrouping.beginning, regrouping.close
        given_back = self.jobs.on_over

        def over(job: str) -> None:
            given_back(job)
            regrouping.over(job)

        self.jobs.on_over = over

    async def start(self) -> None:
        """Begin to listen and speak."""
        self.ingest.writer.start()
        for subject, handler in (
            (subjects.HELLOS, self.agents.hello),
            (subjects.RECORDS, self.ingest.batch),
            (subjects.ACTS, self.agents.act),
            (subjects.STACKS, self.desk.hear),
            (subjects.CHECKPOINTS, self.errands.hear),
            (subjects.DEVICE_EVENTS, self.device_event),
            (subjects.AGENT_DEVICES, self.agent_device),
            (subjects.DEVICE_ALERTS, self.device_alerts),
        ):
            heard = await self.bus.subscribe(subject, self._guarded(handler))
            self._subscriptions.append(heard)
        heard = await self.bus.collect(subjects.HEARTBEATS, self._guarded_taker(self.agents.beats))
        self._subscriptions.append(heard)
        self._tasks.append(asyncio.create_task(self.sender.run(), name="sender"))
        losing = asyncio.create_task(self.watching.run(), name="losses")
        losing.add_done_callback(self._watch)
        self._tasks.append(losing)
        self.bus.on_back(self.agents.call_all)
        self.bus.on_back(self.watching.interrupted)
        self.bus.on_lost(self.watching.interrupted)
        self.agents.call_all()
        self.experiments.start()

    async def run(self) -> None:
        """Let time pass until cancelled; a lost database ends it."""
        ticking = asyncio.create_task(self._ticks(), name="ticks")
        self._tasks.append(ticking)
        await asyncio.wait((ticking, self._over), return_when=asyncio.FIRST_COMPLETED)
        for done in (ticking, self._over):
            if done.done():
                done.result()

    async def stop(self) -> None:
        """Stop listening, store what has come, answer it, and let go."""
        for heard in self._subscriptions:
            await heard.end()
        await self.hangs.close()
        await self.coordinator.close()
        await self.experiments.close()
        await self.retaining.close()
        await self.health.close()
        await asyncio.to_thread(self.ingest.writer.stop)
        await asyncio.to_thread(self._readers.shutdown)  # the database is closed after this
        await asyncio.sleep(0)  # what the writer answered last is to be said
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.sender.drain()

    async def device_event(self, subject: str, data: bytes, reply: str) -> None:
        """Somebody who watches hardware says something over the bus."""
        said = self._device_events.read(data)
        if said is not None:
            state = DeviceState(said.state)
            self.responses.device(said.device, state, said.source, said.reason)

    async def agent_device(self, subject: str, data: bytes, reply: str) -> None:
        """An agent says something of a device, which must be of its own node."""
        said = self._device_events.read(data)
        if said is None:
            return
        agent = self.roster.agent(subjects.agent_of(subject) or "")
        device = self.devices.get(said.device)
        is_foreign = agent is None or bool(subjects.account_mark(agent.id))
        if agent is None or is_foreign or device is None or device.node != agent.host:
            self.dropped["foreign_device"] += 1
            return
        self.responses.device(said.device, DeviceState(said.state), said.source, said.reason)

    async def device_alerts(self, subject: str, data: bytes, reply: str) -> None:
        """Alertmanager says something over the bus."""
        try:
            alerts = read_alerts(data)
        except NoAlerts:
            self.dropped["malformed"] += 1
            return
        for alert in alerts:
            self.responses.device(alert.device, alert.state, alert.source, alert.reason)

    async def aside(self, read: Callable[P, T], *args: P.args, **words: P.kwargs) -> T:
        """Return what a long look at the database finds; the weaver goes on meanwhile."""
        read_now = functools.partial(read, *args, **words)
        return await asyncio.get_running_loop().run_in_executor(self._readers, read_now)

    def every(self, seconds: float, turn: Callable[[], None]) -> None:
        """Have something done now and then, in the weaver's own thread."""
        self._turns.append((seconds, turn))

    def tick(self) -> None:
        """One look at everything that waits for time to pass."""
        self.commands.tick()
        self.regrouping.tick()
        self.responses.tick()
        self.guards.tick()

    async def _ticks(self) -> None:
        looked = time.monotonic()
        done: dict[Callable[[], None], float] = {}
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            if now - looked >= LOOK:
                looked = now
                await self.watching.look()
            for seconds, turn in self._turns:
                if now - done.setdefault(turn, now) >= seconds:
                    done[turn] = now
                    turn()
            self.tick()

    def failing(self, act: Callable[[str], None]) -> Callable[[str], None]:
        """Return the same, but for somebody who cannot hear what goes wrong."""

        def acted(word: str) -> None:
            try:
                act(word)
            except StateLost as error:
                self.fail(error)

        return acted

    def fail(self, error: BaseException) -> None:
        """End: what is in memory is not what is stored. The next weaver reads what is."""
        if not self._over.done():
            self._over.set_exception(error)

    def _watch(self, task: asyncio.Task[None]) -> None:
        """Have what a task fails with end the weaver: it is superseded, or its database is gone."""
        if not task.cancelled() and (error := task.exception()):
            self.fail(error)

    def _guarded_taker(self, taker: Taker) -> Taker:
        """The same for what is taken in together."""

        def guarded(said: list[RawMessage]) -> None:
            try:
                taker(said)
            except StateLost as error:
                self.fail(error)

        return guarded

    def _guarded(self, handler: Handler) -> Callable[[str, bytes, str], Awaitable[None]]:
        """Have a handler that finds a later weaver in charge end this one."""

        async def guarded(subject: str, data: bytes, reply: str) -> None:
            try:
                await handler(subject, data, reply)
            except StateLost as error:
                self.fail(error)
            except Exception:
                _log.exception("what came on %s could not be dealt with", subject)
                raise

        return guarded
