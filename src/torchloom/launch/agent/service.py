"""The job agent on one node: starts ranks through the keeper, writes their logs, reports exits.

It decides nothing: the launch process orders what to start and stop. It may die and be replaced:
the keeper has its ranks, their exits and the ends of their outputs.
"""

import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torchloom import settings
from torchloom.launch import wire
from torchloom.launch.agent.rank import Pump
from torchloom.launch.agent.rank_environment import rank_environment
from torchloom.launch.agent.ranks import AgentRanks, RankStarter
from torchloom.launch.agent.stores import Stores
from torchloom.launch.agent.terminal import TerminalRelay
from torchloom.launch.agent.uplink import PlaneUplink
from torchloom.launch.host import descendants
from torchloom.launch.host.descendants import JobShare
from torchloom.launch.host.identity import ProcessIdentity, host_name
from torchloom.launch.host.sockets import SignalPipe
from torchloom.launch.keeper.client import KeeperLink
from torchloom.launch.logs.display import Display
from torchloom.launch.logs.sinks import MOST_UNSENT, RankLogs
from torchloom.launch.protocol import (
    TO_JOB_AGENT,
    AgentHello,
    AgentLeaving,
    AgentProof,
    ChildExit,
    ChildFailed,
    ChildrenExited,
    ChildStarted,
    EndIncarnation,
    EndJob,
    ForkRank,
    HostStore,
    JobSettings,
    KeeperHello,
    LaunchMessage,
    MeetingReady,
    NodeCleared,
    NodeQuiet,
    NodeUnwatched,
    PrepareMeeting,
    ProofRequest,
    RankProcessReport,
    RanksExited,
    ReplicaOrder,
    SignalRanks,
    StartReplica,
    StopReplica,
    StoreHosted,
    decoding,
)
from torchloom.launch.variables import TOKEN_VARIABLE
from torchloom.launch.wire import Connection
from torchloom.specs.dataclass import dataclass
from torchloom.specs.states import ReplicaKey

LAST_GRACE = 3.0  # seconds for ranks whose launch process is gone
_LOOK = 0.01  # seconds between polls of processes that must end, or of a zygote that starts
_DRAIN = 1.0  # seconds to read what dead ranks left in their pipes


class OrderQueue:
    """The orders of a launch process that were not carried out yet.

    A node may have its own `argv` and `cwd`, which replace those of the launch process.
    """

    def __init__(
        self,
        node: str,
        argv: Sequence[str],
        cwd: str,
        keeper: KeeperLink,
        act: Callable[[LaunchMessage], None],
    ) -> None:
        self._node = node
        self._argv = tuple(argv)
        self._cwd = cwd
        self._inherited = settings.environment()
        self._keeper = keeper
        self._act = act
        self._todo: deque[LaunchMessage] = deque()
        self.orphan_limit = 0.0

    @property
    def pending(self) -> bool:
        """Tell whether there are some."""
        return bool(self._todo)

    def add(self, message: LaunchMessage) -> None:
        self._todo.append(message)
        self.work()

    def work(self) -> None:
        """Do what can be done."""
        while self._todo:
            message = self._todo[0]
            if isinstance(message, StartReplica | HostStore | ForkRank | PrepareMeeting) and (
                not self._has_keeper(message.order)
            ):
                return
            self._todo.popleft()
            self._act(message)

    def take_back(self, key: ReplicaKey) -> list[RanksExited]:
        """Forget starts that still wait for their keeper; return the ends of their ranks."""
        starts = [each for each in self._todo if isinstance(each, StartReplica)]
        taken = [start for start in starts if start.order.key == key]
        for start in taken:
            self._todo.remove(start)
        return [RanksExited(_never_begun(start.order)) for start in taken]

    def clear(self) -> None:
        self._todo.clear()

    def order(self, order: ReplicaOrder) -> ReplicaOrder:
        """Return an order with this host's own command, where it has one."""
        if not self._argv:
            return order
        return replace(order, argv=self._argv, cwd=self._cwd, env={})

    def environment(
        self, order: ReplicaOrder, variables: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Return what processes of a replica have in common, and what one of them has beside."""
        return rank_environment(self._inherited, order, variables or {}, self._node, Path(), {})

    def _has_keeper(self, given: ReplicaOrder) -> bool:
        order = self.order(given)
        env = self.environment(order, order.ranks[0].variables)
        return self._keeper.prepare(order, env, self.orphan_limit)


def _never_begun(order: ReplicaOrder) -> tuple[RankProcessReport, ...]:
    """Return the ends of ranks that ended before they began."""
    lived, code = (order.attempt, order.incarnation), -int(signal.SIGTERM)
    places = ((order.role, order.index, rank.local_rank) for rank in order.ranks)
    return tuple(RankProcessReport(*place, *lived, code=code) for place in places)


@dataclass(frozen=True, slots=True)
class Post:
    """Where an agent runs: its job, its launch process, what its only rank may read."""

    share: JobShare
    launcher: wire.LaunchAddress
    stdin: int | None = None
    terminal: socket.socket | None = None
    leash: int | None = None  # the agent leaves when the other end is closed
    seat: str = ""  # what all incarnations of one node's agent have in common
    place: int | None = None  # the node's number, where it knows it
    argv: tuple[str, ...] = ()  # instead of the launch process' command, with its folder
    cwd: str = ""
    show: Display | None = None  # what of the ranks' outputs is printed here; none: nothing


class JobAgent:
    """One incarnation of a node's job agent."""

    def __init__(self, post: Post) -> None:
        self.code = 0  # how the job ended
        self._post = post
        self._token = settings.environment().get(TOKEN_VARIABLE, "")
        self._challenge = wire.nonce()
        self._last_output = time.monotonic()
        self._quiet_limit = 0.0
        self._leaving = False
        self._selector = selectors.DefaultSelector()
        self._signals = SignalPipe()
        self._selector.register(self._signals.fileno(), selectors.EVENT_READ, self._on_signals)
        if post.leash is not None:
            self._selector.register(post.leash, selectors.EVENT_READ, self._on_leash)
        self._launcher = Connection(
            post.launcher.connect(),
            self._selector,
            decoding(TO_JOB_AGENT, self._on_launcher),
            self._on_launcher_gone,
        )
        self._furnish(post)

    def _furnish(self, post: Post) -> None:
        """Have all that it takes to start ranks."""
        share, tell = post.share, self._launcher.send
        self._pump = Pump(
            self._selector, self._on_output, lambda: self._launcher.unsent > MOST_UNSENT
        )
        self._keeper = KeeperLink(share, self._selector, self._on_keeper, self._on_no_keeper)
        self._stores = Stores(share, self._keeper, self._selector)
        self._logs = RankLogs(share, post.show, tell)
        self._uplink = PlaneUplink(share, post.launcher)
        self._ranks = AgentRanks(share.app_id, self._keeper, self._pump)
        self._starter = RankStarter(
            share, post.stdin, self._ranks, self._logs, self._stores, self._uplink, tell
        )
        self._orders = OrderQueue(share.node, post.argv, post.cwd, self._keeper, self._act)

    def run(self) -> None:
        """Serve until the launch process ends the job, or is gone."""
        if not self._keeper.find():
            self._introduce()
        while not self._leaving:
            self._turn()
        self._stores.close()
        self._launcher.finish()

    def _introduce(self) -> None:
        """Send the launch process a hello with the ranks that the agent before has left."""
        self._launcher.send(
            AgentHello(
                host=host_name(),
                process=ProcessIdentity.mine(),
                ranks=self._ranks.all_shown(),
                challenge=self._challenge,
                registration=self._post.seat,
                place=self._post.place,
            )
        )

    def _turn(self, longest: float | None = None) -> None:
        for key, ready in self._selector.select(self._patience(longest)):
            key.data(ready)
        self._orders.work()
        self._pump.resume()
        self._look_after_uplink()
        self._ranks.kill_due()
        now = time.monotonic()
        if self._quiet_limit and now >= self._last_output + self._quiet_limit:
            self._launcher.send(NodeQuiet(now - self._last_output))
            self._last_output = now

    def _patience(self, longest: float | None) -> float | None:
        waits = [*self._ranks.waits(), *self._uplink.waits()]
        if longest is not None:
            waits.append(longest)
        if self._orders.pending:
            waits.append(_LOOK)
        if self._quiet_limit:
            waits.append(max(0.0, self._last_output + self._quiet_limit - time.monotonic()))
        return min(waits, default=None)

    def _on_signals(self, _ready: int) -> None:
        """The keeper may be a child of this process: its end shows in its connection."""
        if self._signals.read():
            self._look_after_uplink(descendants.reap())

    def _on_output(self) -> None:
        self._last_output = time.monotonic()

    # Messages of the launch process.

    def _on_launcher(self, message: LaunchMessage, _fds: list[int]) -> None:
        match message:
            case ProofRequest():
                answer = wire.proof(self._token, "agent", message.challenge)
                self._launcher.send(AgentProof(answer))
            case JobSettings():
                self._take_job(message)
            case EndJob():
                self.code = message.code
                self._end(message.grace)
            case StopReplica():
                for ended in self._orders.take_back(ReplicaKey(*message.key)):
                    self._launcher.send(ended)
                self._orders.add(message)
            case _:
                self._orders.add(message)

    def _act(self, message: LaunchMessage) -> None:
        match message:
            case StartReplica():
                self._on_output()  # of those that begin none is expected yet
                self._starter.start(self._orders.order(message.order))
            case HostStore():
                self._host_store(self._orders.order(message.order), message.address)
            case ForkRank():
                if self._starter.fork(self._orders.order(message.order)):
                    self._on_output()
            case PrepareMeeting():
                self._meet(self._orders.order(message.order), message.address)
            case EndIncarnation():
                self._ranks.end_incarnation(ReplicaKey(*message.key), *message.incarnation)
            case StopReplica():
                self._ranks.stop(ReplicaKey(*message.key), message.signum, message.grace)
            case SignalRanks():
                self._ranks.signal_all(message.signum)

    def _take_job(self, job: JobSettings) -> None:
        if self._token and not wire.is_proof(job.proof, self._token, "launcher", self._challenge):
            self._on_launcher_gone()  # that is not our launch process
            return
        self._quiet_limit = job.quiet_limit
        self._orders.orphan_limit = job.orphan_limit
        self._logs.settle(job.log_dir, job.marker)
        self._uplink.settle(job.uplink)
        if self._ranks.alive:  # an agent before has started them
            self._uplink.start()
        if self._post.terminal is not None and self._pump.relay is None:
            self._lend_terminal(self._post.terminal)

    def _lend_terminal(self, channel: socket.socket) -> None:
        self._pump.relay = TerminalRelay(channel, self._selector)
        for rank in self._ranks.alive:
            for fd in rank.outputs:
                self._pump.relay.attach(fd)

    def _on_leash(self, _ready: int) -> None:
        """The process that started this agent is gone: end the ranks here, and leave."""
        if self._post.leash is None:
            return
        signums = os.read(self._post.leash, 1024)
        for signum in signums:  # for the ranks here
            self._ranks.signal_all(signum)
        if not signums:
            self._selector.unregister(self._post.leash)
            self._launcher.send(AgentLeaving())
            self._on_launcher_gone()

    def _on_launcher_gone(self) -> None:
        """There is no launch process any more: end the ranks, with a short grace."""
        if not self._leaving:
            self._leaving = True
            self.code = 1
            for key in {rank.key for rank in self._ranks.alive}:
                self._ranks.stop(key, signal.SIGTERM, LAST_GRACE)
            self._end(LAST_GRACE)

    # Stores, and the link to the plane.

    def _host_store(self, order: ReplicaOrder, address: str) -> None:
        port = self._stores.host(order, self._orders.environment(order), address)
        self._launcher.send(StoreHosted(order.role, order.attempt, port.number, port.hosted))

    def _meet(self, order: ReplicaOrder, address: str) -> None:
        """Have a store for a later generation of an attempt that is under way."""
        if order.file_store:
            store = self._stores.file_of(order.role, order.generation)
        else:
            port = self._stores.host(order, self._orders.environment(order), address)
            store = f"tcp://{address}:{port.number}" if port.hosted else ""
        self._launcher.send(MeetingReady(order.attempt, order.generation, store))

    def _look_after_uplink(self, ended: Sequence[tuple[int, int]] = ()) -> None:
        if why := self._uplink.look(ended):
            self._launcher.send(NodeUnwatched(why))

    # Messages of the keeper.

    def _on_keeper(self, message: LaunchMessage, fds: list[int]) -> None:
        match message:
            case KeeperHello():
                if self._keeper.was_found:
                    self._ranks.take_over(message.children, fds, self._logs)
                    self._introduce()
            case ChildStarted():
                self._starter.started(message)
            case ChildFailed():
                self._starter.failed(message)
            case ChildrenExited():
                self._exited(message.children)

    def _exited(self, children: Sequence[ChildExit]) -> None:
        for child in children:
            self._stores.exited(child.number)
        if ended := self._ranks.exited(children):
            self._launcher.send(RanksExited(ended))

    def _on_no_keeper(self) -> None:
        """The keeper is gone, and the kernel has ended its ranks."""
        ended = self._ranks.killed()
        if ended and not self._leaving:
            self._launcher.send(RanksExited(tuple(map(self._ranks.shown, ended))))

    # The end.

    def _end(self, grace: float) -> None:
        """End what the job left running here, first with SIGTERM, and read its last output."""
        self._leaving = True
        self._orders.clear()
        deadline = time.monotonic() + grace
        self._keeper.sweep(signal.SIGTERM)
        while self._keeper.has_more and time.monotonic() < deadline:
            self._turn(_LOOK)
            self._keeper.look_again()
        self._keeper.end()
        while not self._keeper.is_gone:
            self._turn(_LOOK)
        self._pump.finish(_DRAIN)
        self._logs.say_hidden()
        self._end_uplink()
        self._launcher.send(NodeCleared(self._ranks.lost_bytes))
        if self._pump.relay is not None:
            self._pump.relay.close()

    def _end_uplink(self) -> None:
        """Let the node agent flush its spool, unless the launch process is gone."""
        limit = self._uplink.leave(at_once=not self._launcher.is_open)
        deadline = time.monotonic() + limit
        while self._uplink.has_relay and time.monotonic() < deadline:
            self._turn(_LOOK)
        self._uplink.leave(at_once=True)
