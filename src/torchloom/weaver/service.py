"""The weaver: a list of its parts, and a table of which part handles which event."""

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
from torchloom.messages.plane import DeviceEvent
from torchloom.rules.devices import DeviceState
from torchloom.weaver.account_runs import AccountLauncher
from torchloom.weaver.checkpoints.collection import CheckpointCollector
from torchloom.weaver.checkpoints.requests import (
    CheckpointPruning,
    CheckpointRequests,
    CheckpointRows,
)
from torchloom.weaver.checkpoints.triggers import MARGIN, CheckpointTriggers
from torchloom.weaver.commands.driver import CommandDriver
from torchloom.weaver.commands.guards import Guards
from torchloom.weaver.commands.rows import CommandRows
from torchloom.weaver.events import (
    AgentDown,
    BackgroundTasks,
    Dispatcher,
    JobChanged,
    JobStopping,
    JobVacated,
    Journal,
    LaunchRegistered,
    MemberReported,
    MetricsReceived,
    NodeReported,
    RankEventReceived,
    RankEventReported,
    RankProcessEnded,
    RankRegistered,
    RecordsStored,
    RunStarted,
    Sender,
    UnknownJobRequested,
    on,
)
from torchloom.weaver.health.agents import Agents
from torchloom.weaver.health.devices import DeviceMap, NoAlerts, read_alerts
from torchloom.weaver.health.hangs import Hangs, StackRequests
from torchloom.weaver.health.heartbeats import CHECK, AgentLiveness, Heartbeats
from torchloom.weaver.health.responses import LossWatch, Responses
from torchloom.weaver.health.roster import Roster
from torchloom.weaver.jobs.adoption import SETTLE_PERIOD, Adoption
from torchloom.weaver.jobs.coordinator import Coordinator
from torchloom.weaver.jobs.launch import Launcher, RunnerLauncher
from torchloom.weaver.jobs.registry import JobRegistry
from torchloom.weaver.jobs.reports import BatchIngest, RankReports
from torchloom.weaver.jobs.retention import PERIOD, RunRetention
from torchloom.weaver.membership.attempt import LiveAttempts
from torchloom.weaver.membership.effects import MemberMessages
from torchloom.weaver.membership.live_recovery import LiveRecovery
from torchloom.weaver.runs.experiments import Experiments
from torchloom.weaver.store import PlaneStore, StateLost
from torchloom.weaver.store.integrity import LOOK as CHECK_FILES
from torchloom.weaver.store.integrity import DatabaseHealth
from torchloom.weaver.users import UserRegistry

P = ParamSpec("P")
T = TypeVar("T")

TICK = 0.05  # seconds between two ticks
_READERS = 4  # threads that read the database for clients
_FENCE = 1.0  # seconds between two checks for a later weaver
_CHECKPOINTS = 0.5  # seconds between two checks of unfinished checkpoints
_QUEUE = 1.0  # seconds between two checks of what the queue can place
_log = logging.getLogger(__name__)


class Weaver:
    """All parts, wired. `run` returns when cancelled or superseded; tests call `tick`."""

    def __init__(
        self,
        store: PlaneStore,
        bus: Bus,
        launcher: Launcher | None = None,
        checkpoint_margin: float = MARGIN,
    ) -> None:
        self.store = store
        self.bus = bus
        self.started_at = time.time()
        self.host = socket.gethostname()
        self.epoch = store.take_epoch(self.host, os.getpid())
        self.dropped: Counter[str] = Counter()
        self.events = Dispatcher()
        self.tasks = BackgroundTasks()
        self._make_core()
        self._make_checkpoints(checkpoint_margin)
        self._make_health()
        self._make_jobs(launcher or AccountLauncher(RunnerLauncher(), self.jobs.get))
        self._device_events: MessageReader[DeviceEvent] = MessageReader(DeviceEvent, self.dropped)
        self._subscriptions: list[Subscription] = []
        self._own_tasks: list[asyncio.Task[None]] = []
        self._readers = ThreadPoolExecutor(_READERS, "reader")
        self._connect()
        self._periodic: list[tuple[float, Callable[[], None]]] = [
            (_FENCE, store.state.check),
            (_CHECKPOINTS, self.checkpoints.tick),
            (_QUEUE, self.triggers.check),
            (_QUEUE, self.coordinator.nodes.update),
            (PERIOD, self.retention.remove_soon),
            (SETTLE_PERIOD, self.adoption.settle),
            (CHECK_FILES, self.health.look),
        ]

    def _make_core(self) -> None:
        """Jobs, agents, ranks and devices; commands to ranks and reports from them."""
        state, events, dropped = self.store.state, self.events, self.dropped
        self.journal = journal = Journal(state)
        self.users = UserRegistry(state, journal)
        self.jobs = jobs = JobRegistry(state, journal, events, dropped)
        self.roster = roster = Roster(state, jobs, journal, events, dropped)
        self.devices = devices = DeviceMap(state, roster.everyone(), journal)
        self.sender = sender = Sender(self.bus, dropped)
        self.heartbeats = heartbeats = Heartbeats()
        self.live_attempts = attempts = LiveAttempts(state)
        self.command_rows = rows = CommandRows(state, journal)
        self.commands = commands = CommandDriver(rows, jobs, roster, sender, attempts, events)
        self.checkpoint_rows = checkpoints = CheckpointRows(state, journal)
        self.reports = RankReports(
            jobs, roster, devices, commands, checkpoints, heartbeats, events, dropped
        )
        self.ingest = BatchIngest(self.store, self.reports, journal, sender, events, dropped)

    def _make_checkpoints(self, margin: float) -> None:
        """What turns the shards of ranks into checkpoints, and removes old ones."""
        jobs, roster, dropped = self.jobs, self.roster, self.dropped
        rows, command_rows = self.checkpoint_rows, self.command_rows
        self.checkpoint_requests = requests = CheckpointRequests(
            rows, roster, self.sender, self.epoch, self.host, dropped
        )
        self.pruning = pruning = CheckpointPruning(jobs, rows, requests)
        self.checkpoints = CheckpointCollector(
            self.store.state, jobs, roster, command_rows, rows, requests, pruning, dropped
        )
        self.triggers = CheckpointTriggers(jobs, command_rows, self.commands, rows, margin)

    def _make_health(self) -> None:
        """What watches agents, ranks and devices, and responds when they fail."""
        state, jobs, roster, journal = self.store.state, self.jobs, self.roster, self.journal
        sender, tasks, dropped = self.sender, self.tasks, self.dropped
        reports, commands, devices = self.reports, self.commands, self.devices
        heartbeats, attempts, rows = self.heartbeats, self.live_attempts, self.checkpoint_rows
        members = MemberMessages(roster, sender, self.epoch, dropped)
        self.live_recovery = LiveRecovery(
            state, jobs, roster, reports, commands, rows, journal, members, attempts, dropped
        )
        self.responses = Responses(
            state, jobs, roster, devices, journal, sender, self.live_recovery
        )
        self.stack_requests = stacks = StackRequests(roster, sender, self.epoch, dropped)
        self.hangs = Hangs(
            jobs, roster, self.responses, journal, stacks, heartbeats, attempts, tasks
        )
        self.liveness = AgentLiveness(self.bus, roster)
        self.agents = Agents(
            state,
            roster,
            devices,
            commands,
            reports,
            heartbeats,
            self.liveness,
            self.hangs,
            sender,
            self.events,
            tasks,
            dropped,
        )
        self.losses = LossWatch(jobs, journal)
        self.guards = Guards(self.store, jobs, roster, self.command_rows, commands, journal)

    def _make_jobs(self, launcher: Launcher) -> None:
        """What starts jobs, records their runs, and removes them."""
        store, jobs, roster, journal = self.store, self.jobs, self.roster, self.journal
        devices, events, tasks = self.devices, self.events, self.tasks
        self.adoption = Adoption(jobs, roster, self.reports, journal, self.dropped)
        self.coordinator = Coordinator(
            store.state, jobs, roster, devices, journal, launcher, events, tasks
        )
        self.experiments = Experiments(store, jobs, roster, devices, self.host, tasks)
        self.health = DatabaseHealth(store.place, store.damage, lambda: self.ingest.writer.trouble)
        self.retention = RunRetention(store, jobs, journal, self.checkpoint_rows, tasks)

    def _connect(self) -> None:
        """Set which part handles which event; several handle it in this order."""
        coordinator, live_recovery = self.coordinator, self.live_recovery
        self.events.connect(
            on(UnknownJobRequested, self.adoption.on_run),
            on(RunStarted, self.adoption.on_run),
            on(JobChanged, self.experiments.on_job_changed),
            on(JobVacated, coordinator.queue.on_job_vacated, live_recovery.on_job_vacated),
            on(JobStopping, live_recovery.on_job_stopping),
            on(NodeReported, coordinator.nodes.on_node_reported),
            on(AgentDown, self.agents.on_agent_down, coordinator.nodes.on_agent_down),
            on(RankRegistered, self.checkpoints.on_rank_registered),
            on(RankProcessEnded, self.hangs.on_rank_ended),
            on(LaunchRegistered, live_recovery.on_launch_registered),
            on(MemberReported, live_recovery.on_member_report),
            on(RankEventReceived, self.checkpoints.on_rank_event),
            on(
                RankEventReported,
                self.losses.on_rank_event,  # before the responses, which may end the ranks
                self.responses.on_rank_event,
                self.experiments.on_rank_event,
                self.triggers.on_rank_event,
            ),
            on(MetricsReceived, self.losses.on_metrics, self.guards.on_metrics),
            on(RecordsStored, self.experiments.on_records_stored),
        )

    async def start(self) -> None:
        """Subscribe to the bus and start to send."""
        self.ingest.writer.start()
        for subject, handler in (
            (subjects.HELLOS, self.agents.on_hello),
            (subjects.RECORDS, self.ingest.on_batch),
            (subjects.ACTS, self.agents.on_act),
            (subjects.STACKS, self.stack_requests.on_stacks),
            (subjects.CHECKPOINTS, self.checkpoints.on_reply),
            (subjects.DEVICE_EVENTS, self.on_device_event),
            (subjects.AGENT_DEVICES, self.on_agent_device),
            (subjects.DEVICE_ALERTS, self.on_device_alerts),
        ):
            subscription = await self.bus.subscribe(subject, self._guarded(handler))
            self._subscriptions.append(subscription)
        heartbeats = self._guarded_taker(self.agents.on_heartbeats)
        self._subscriptions.append(await self.bus.collect(subjects.HEARTBEATS, heartbeats))
        self._own_tasks.append(asyncio.create_task(self.sender.run(), name="sender"))
        self._own_tasks.append(self.tasks.start(self.liveness.run(), "losses"))
        self.bus.on_back(self.agents.call_all)
        self.bus.on_back(self.liveness.interrupted)
        self.bus.on_lost(self.liveness.interrupted)
        self.agents.call_all()
        self.experiments.start()

    async def run(self) -> None:
        """Call what is periodic, until cancelled or until a part fails; then raise its error."""
        ticks = asyncio.create_task(self._ticks(), name="ticks")
        failure = asyncio.create_task(self.tasks.failure(), name="failure")
        self._own_tasks += (ticks, failure)
        await asyncio.wait((ticks, failure), return_when=asyncio.FIRST_COMPLETED)
        for done in (ticks, failure):
            if done.done():
                done.result()

    async def stop(self) -> None:
        """Unsubscribe, store and confirm what has arrived, end the tasks."""
        for subscription in self._subscriptions:
            await subscription.end()
        await self.hangs.close()
        await self.coordinator.close()
        await self.experiments.close()
        await self.retention.close()
        await self.health.close()
        await asyncio.to_thread(self.ingest.writer.stop)
        await asyncio.to_thread(self._readers.shutdown)  # the database is closed after this
        await asyncio.sleep(0)  # the writer's last confirmations are queued in the loop
        for task in self._own_tasks:
            task.cancel()
        await asyncio.gather(*self._own_tasks, return_exceptions=True)
        await self.sender.drain()

    async def on_device_event(self, subject: str, data: bytes, reply: str) -> None:
        """Handle the report of a hardware monitor on a device."""
        event = self._device_events.read(data)
        if event is not None:
            state = DeviceState(event.state)
            self.responses.device(event.device, state, event.source, event.reason)

    async def on_agent_device(self, subject: str, data: bytes, reply: str) -> None:
        """Handle the report of an agent on a device, which must be on its own node."""
        event = self._device_events.read(data)
        if event is None:
            return
        agent = self.roster.agent(subjects.agent_of(subject) or "")
        device = self.devices.get(event.device)
        is_foreign = agent is None or bool(subjects.account_mark(agent.id))
        if agent is None or is_foreign or device is None or device.node != agent.host:
            self.dropped["foreign_device"] += 1
            return
        self.responses.device(event.device, DeviceState(event.state), event.source, event.reason)

    async def on_device_alerts(self, subject: str, data: bytes, reply: str) -> None:
        """Handle alerts of Alertmanager."""
        try:
            alerts = read_alerts(data)
        except NoAlerts:
            self.dropped["malformed"] += 1
            return
        for alert in alerts:
            self.responses.device(alert.device, alert.state, alert.source, alert.reason)

    async def aside(self, read: Callable[P, T], *args: P.args, **words: P.kwargs) -> T:
        """Return the result of a long read, done in another thread."""
        read_now = functools.partial(read, *args, **words)
        return await asyncio.get_running_loop().run_in_executor(self._readers, read_now)

    def every(self, seconds: float, act: Callable[[], None]) -> None:
        """Call a function periodically, in the weaver's own thread."""
        self._periodic.append((seconds, act))

    def tick(self) -> None:
        """Have the parts act on what time has made due."""
        self.commands.tick()
        self.live_recovery.tick()
        self.responses.tick()
        self.guards.tick()

    async def _ticks(self) -> None:
        checked = time.monotonic()
        done: dict[Callable[[], None], float] = {}
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            if now - checked >= CHECK:
                checked = now
                await self.liveness.check()
            for seconds, act in self._periodic:
                if now - done.setdefault(act, now) >= seconds:
                    done[act] = now
                    act()
            self.tick()

    def failing(self, act: Callable[[str], None]) -> Callable[[str], None]:
        """Wrap a function whose caller cannot handle `StateLost`: that ends the weaver."""

        def guarded(text: str) -> None:
            try:
                act(text)
            except StateLost as error:
                self.tasks.fail(error)

        return guarded

    def _guarded_taker(self, taker: Taker) -> Taker:
        def guarded(messages: list[RawMessage]) -> None:
            try:
                taker(messages)
            except StateLost as error:
                self.tasks.fail(error)

        return guarded

    def _guarded(self, handler: Handler) -> Callable[[str, bytes, str], Awaitable[None]]:
        """Wrap a handler of the bus: a later weaver, or a lost database, ends this one."""

        async def guarded(subject: str, data: bytes, reply: str) -> None:
            try:
                await handler(subject, data, reply)
            except StateLost as error:
                self.tasks.fail(error)
            except Exception:
                _log.exception("a message on %s could not be handled", subject)
                raise

        return guarded
