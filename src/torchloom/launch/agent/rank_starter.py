"""Start the ranks of an order, and report the keeper's answers for all of them at once."""

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Mapping

from torchloom import settings
from torchloom.launch.agent.rank import AgentRank
from torchloom.launch.agent.rank_environment import rank_environment
from torchloom.launch.agent.ranks import AgentRanks
from torchloom.launch.agent.stores import Stores
from torchloom.launch.agent.uplink import PlaneUplink
from torchloom.launch.host import shared_memory, sockets
from torchloom.launch.host.descendants import JobShare
from torchloom.launch.logs.files import put_aside
from torchloom.launch.logs.sinks import RankLogs
from torchloom.launch.protocol import (
    ChildFailed,
    ChildStarted,
    LaunchMessage,
    OutputRouting,
    RankNotForked,
    RankOrder,
    RanksStarted,
    ReplicaOrder,
    ReplicaStartFailed,
)
from torchloom.launch.variables import PAGE_VARIABLE, STORE_VARIABLE, UPLINK_VARIABLE
from torchloom.specs.states import ReplicaKey

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
