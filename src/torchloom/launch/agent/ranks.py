"""The ranks of one job on a node: how an order is started, which there are, how each is ended."""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from torchloom import settings
from torchloom.launch.agent.rank import AgentRank, Pump
from torchloom.launch.agent.rank_environment import rank_environment
from torchloom.launch.agent.stores import Stores
from torchloom.launch.agent.uplink import PlaneUplink
from torchloom.launch.host import shared_memory, sockets
from torchloom.launch.host.descendants import JobShare
from torchloom.launch.keeper.client import KeeperLink
from torchloom.launch.logs.files import ErrorFile, put_aside
from torchloom.launch.logs.sinks import RankLogs
from torchloom.launch.protocol import (
    ChildExit,
    ChildFailed,
    ChildReport,
    ChildStarted,
    LaunchMessage,
    OutputRouting,
    RankNote,
    RankNotForked,
    RankOrder,
    RankProcessReport,
    RanksStarted,
    ReplicaOrder,
    ReplicaStartFailed,
    encode,
    read,
)
from torchloom.launch.variables import PAGE_VARIABLE, STORE_VARIABLE, UPLINK_VARIABLE
from torchloom.specs.states import ReplicaKey


class AgentRanks:
    """Those that were ordered, each by the keeper's number for it, until they are buried."""

    def __init__(self, app_id: str, keeper: KeeperLink, pump: Pump) -> None:
        self._app_id = app_id
        self._keeper = keeper
        self._pump = pump
        self._ranks: dict[int, AgentRank] = {}
        self._kill_at: dict[ReplicaKey, float] = {}
        self._buried_lost = 0

    def get(self, number: int) -> AgentRank | None:
        return self._ranks.get(number)

    def of(self, key: ReplicaKey) -> list[AgentRank]:
        """Return the ranks of one replica, alive or not."""
        return [rank for rank in self._ranks.values() if rank.key == key]

    @property
    def alive(self) -> list[AgentRank]:
        return [rank for rank in self._ranks.values() if rank.is_alive]

    @property
    def lost_bytes(self) -> int:
        """How much they printed that no log has."""
        return self._buried_lost + sum(rank.log.lost for rank in self._ranks.values())

    # Coming and going.

    def begin(
        self, rank: AgentRank, order: ReplicaOrder, env: Mapping[str, str], stdin: int | None
    ) -> None:
        """Have the keeper start a rank, on a terminal of its own where one watches."""
        relay = self._pump.relay
        given = rank.pipes(stdin) if relay is None else rank.terminal(relay.attach)
        kept, is_terminal = list(rank.outputs), relay is not None
        rank.warmth = self._keeper.warmth
        rank.number = self._keeper.start(
            order.argv, env, order.cwd, given, kept, encode(rank.note), is_terminal
        )
        self._ranks[rank.number] = rank

    def started(self, rank: AgentRank, shown: ChildReport) -> None:
        """Take note of a rank's process, and read what it prints."""
        rank.started(shown)
        self._pump.watch(rank)

    def take_over(self, children: Iterable[ChildReport], fds: list[int], logs: RankLogs) -> None:
        """Have what an agent before has started."""
        for child in children:
            kept, fds = fds[: child.kept], fds[child.kept :]
            self._keeper.number = max(self._keeper.number, child.number)
            if "role" in child.note:  # else a store; its attempt needs no agent to end it
                self._adopt(child, kept, logs)

    def _adopt(self, child: ChildReport, kept: list[int], logs: RankLogs) -> None:
        note = read(RankNote, child.note)
        rank = AgentRank.from_note(note, logs.at(Path(note.directory), note.logs))
        rank.number = child.number
        rank.log = logs.dressed(rank)
        for fd, stream in zip(kept, ("stdout", "stderr"), strict=False):
            rank.watch(fd, stream)
        self.started(rank, child)
        self._ranks[rank.number] = rank

    def drop(self, rank: AgentRank) -> None:
        """Forget a rank that could not be started."""
        del self._ranks[rank.number]
        for fd in list(rank.outputs):
            rank.close(fd)

    def bury(self, rank: AgentRank) -> None:
        """End what the attempt before left running, so that it cannot disturb the next."""
        del self._ranks[rank.number]
        self._keeper.bury(rank.number)
        self._buried_lost += rank.log.lost

    def clear(self, key: ReplicaKey) -> None:
        """Remove a replica's ranks before it starts again; the grace was for them."""
        self._kill_at.pop(key, None)
        for rank in self.of(key):
            self.bury(rank)

    # Ending.

    def stop(self, key: ReplicaKey, signum: int, grace: float) -> None:
        """Tell a replica to end; what has not when the grace is over is killed."""
        self._kill_at[key] = time.monotonic() + grace
        self.signal(key, signum)
        self.signal(key, signal.SIGCONT)  # a stopped process sees its signal only then

    def kill_due(self) -> None:
        """Kill those whose grace is over."""
        now = time.monotonic()
        for key in [key for key, when in self._kill_at.items() if when <= now]:
            del self._kill_at[key]
            self.signal(key, signal.SIGKILL)

    def waits(self) -> list[float]:
        """Return in how many seconds each grace is over."""
        return [max(0.0, when - time.monotonic()) for when in self._kill_at.values()]

    def end_incarnation(
        self, key: ReplicaKey, local_rank: int, attempt: int, incarnation: int
    ) -> None:
        """End one process of a rank at once, and no other."""
        for rank in self.alive:
            if rank.is_process(key, local_rank, attempt, incarnation):
                self._keeper.signal(rank.number, signal.SIGKILL)

    def signal(self, key: ReplicaKey, signum: int) -> None:
        for rank in self.alive:
            if rank.key == key:
                self._keeper.signal(rank.number, signum)

    def signal_all(self, signum: int) -> None:
        for rank in self.alive:
            self._keeper.signal(rank.number, signum)

    # Reports.

    def exited(self, children: Iterable[ChildExit]) -> tuple[RankProcessReport, ...]:
        """Take note of ends, with the last output of each; return their reports."""
        ended = []
        for child in children:
            rank = self._ranks.get(child.number)
            if rank is not None:
                self._end(rank, child.code)
                ended.append(self.shown(rank))
        return tuple(ended)

    def killed(self) -> list[AgentRank]:
        """Take note that the kernel has ended all that lived; return who that was."""
        ended = self.alive
        for rank in ended:
            self._end(rank, -signal.SIGKILL)
        return ended

    def all_shown(self) -> tuple[RankProcessReport, ...]:
        return tuple(map(self.shown, self._ranks.values()))

    def shown(self, rank: AgentRank) -> RankProcessReport:
        """Return what a launch process is to know of a rank."""
        report = ErrorFile.read(rank.error_file) if rank.code else None
        return RankProcessReport(
            **rank.facts(),
            code=rank.code,
            process=rank.process,
            error=(report.text, report.written) if report else None,
            step=None if rank.code is None else self._last_step(rank),
        )

    def _end(self, rank: AgentRank, code: int) -> None:
        rank.code = code
        self._pump.drain(rank)

    def _last_step(self, rank: AgentRank) -> int:
        """Return the step a rank was in when it ended, by its page; -1 when the page has none."""
        from torchloom.bus.progress_page import PageView

        view = PageView.open(shared_memory.page(self._app_id, rank.page))
        if view is None:
            return -1
        reading = view.read()
        view.close()
        return reading.step if reading and reading.applied else -1


_BAD_NODE = (errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENOTCONN, errno.ETIMEDOUT)


class RankStarter:
    """Ranks that are being started. `stdin` is what an only one may read."""

    def __init__(
        self,
        share: JobShare,
        stdin: int | None,
        ranks: AgentRanks,
        logs: RankLogs,
        stores: Stores,
        uplink: PlaneUplink,
        send: Callable[[LaunchMessage], None],
    ) -> None:
        self._share = share
        self._stdin = stdin
        self._inherited = settings.environment()
        self._ranks = ranks
        self._logs = logs
        self._stores = stores
        self._uplink = uplink
        self._send = send
        self._starting: dict[ReplicaKey, list[AgentRank]] = {}
        self._failed: dict[ReplicaKey, OSError] = {}
        self._newcomers: set[int] = set()  # that the keeper has not answered for

    def start(self, order: ReplicaOrder) -> None:
        """Start all ranks of a replica; what is left of the attempt before goes first."""
        key = order.key
        self._ranks.clear(key)
        self._starting[key] = []
        self._failed.pop(key, None)
        settled = sockets.settle(order.ports)
        for mine in order.ranks:
            self._starting[key].append(self._begin(order, mine, settled))

    def fork(self, order: ReplicaOrder) -> bool:
        """Start one rank while the others of its replica live; false when that has been done."""
        mine = order.ranks[0]
        before = [rank for rank in self._ranks.of(order.key) if rank.is_place_of(order, mine)]
        if any(
            rank.attempt == order.attempt and rank.incarnation >= order.incarnation
            for rank in before
        ):
            return False
        owner = f"{order.role}-a{order.attempt}-r{mine.variables.get('RANK', '')}"
        shared_memory.hand_on(self._share.app_id, owner, order.incarnation)
        self._newcomers.add(self._begin(order, mine, sockets.settle(order.ports)).number)
        for rank in before:
            self._ranks.bury(rank)  # after the start: to find what it left running takes a while
        return True

    def _begin(self, order: ReplicaOrder, mine: RankOrder, settled: Mapping[str, int]) -> AgentRank:
        rank = self._rank(order, mine)
        with contextlib.suppress(OSError):  # without it the rank has no logs, and no error file
            rank.log.directory.mkdir(parents=True, exist_ok=True)
        put_aside(rank.error_file, _before(order))
        variables = dict(mine.variables)
        here = {
            STORE_VARIABLE: self._stores.settle(order, variables),
            PAGE_VARIABLE: shared_memory.make_page(self._share.app_id, rank.page),
            UPLINK_VARIABLE: self._uplink.address,
        }
        logs = rank.log.directory
        env = rank_environment(
            self._inherited, order, variables, self._share.node, logs, settled, here
        )
        self._stores.offer(order, env)
        self._ranks.begin(rank, order, env, self._stdin)
        return rank

    def _rank(self, order: ReplicaOrder, mine: RankOrder) -> AgentRank:
        log, forwarded = self._logs.of(mine.logs), self._logs.forwarded(mine.logs)
        lived = (order.incarnation, order.generation)
        rank = AgentRank(order.key, mine.local_rank, order.attempt, forwarded, log, *lived)
        copies = order.copies and f"{order.copies}/{mine.local_rank}"
        rank.output = OutputRouting(mine.variables.get("RANK", ""), copies, mine.copied)
        rank.log = self._logs.dressed(rank)
        return rank

    # Answers of the keeper.

    def started(self, shown: ChildStarted) -> None:
        """A process is there."""
        rank = self._ranks.get(shown.number)
        if rank is None:
            return
        self._ranks.started(rank, shown)
        if rank.number in self._newcomers:
            self._newcomers.discard(rank.number)
            self._send(RanksStarted((self._ranks.shown(rank),)))
        else:
            self._answered(rank.key)
        _learn_to_read_pages()
        self._uplink.start()  # after the ranks, which need not wait for it

    def failed(self, message: ChildFailed) -> None:
        """A process could not be started."""
        rank = self._ranks.get(message.number)
        if rank is None:
            return
        self._ranks.drop(rank)
        error = OSError(message.errno, message.what or "")
        if rank.number in self._newcomers:
            self._newcomers.discard(rank.number)
            self._send(RankNotForked(**rank.facts(), cause=_why(error)))
            return
        self._starting[rank.key].remove(rank)
        self._failed.setdefault(rank.key, error)
        self._answered(rank.key)

    def _answered(self, key: ReplicaKey) -> None:
        """Report a replica once the keeper has answered for all of its ranks."""
        ranks = self._starting.get(key, [])
        if any(rank.process is None for rank in ranks):
            return
        self._starting.pop(key, None)
        if key in self._failed:
            self._ranks.signal(key, signal.SIGKILL)
            error = self._failed.pop(key)
            bad = error.errno in _BAD_NODE
            self._send(ReplicaStartFailed(key.role, key.index, _why(error), bad))
        self._send(RanksStarted(tuple(map(self._ranks.shown, ranks)), key.role, key.index))


def _learn_to_read_pages() -> None:
    """Import now what an exit needs: it is reported at once; and what a next keeper needs."""
    import torchloom.bus.progress_page
    import torchloom.launch.keeper.service  # noqa: F401


def _before(order: ReplicaOrder) -> int | str:
    """Return under which name the error of the incarnation before is kept."""
    return (
        order.attempt - 1 if order.incarnation == 1 else f"{order.attempt}-{order.incarnation - 1}"
    )


def _why(error: OSError) -> str:
    return f"{error.strerror}: {os.strerror(error.errno or 0)}"
