"""The ranks of one job on a node: which there are, how each is ended, and its reports."""

import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from torchloom.launch.agent.rank import AgentRank, Pump
from torchloom.launch.host import shared_memory
from torchloom.launch.keeper.client import KeeperLink
from torchloom.launch.logs.files import ErrorFile
from torchloom.launch.logs.sinks import RankLogs
from torchloom.launch.protocol import (
    ChildExit,
    ChildReport,
    RankNote,
    RankProcessReport,
    ReplicaOrder,
    encode,
    read,
)
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
