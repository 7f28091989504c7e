"""The processes that an attempt's ranks have had, and whose business their ends are.

While a weaver watches, a rank that ends is told to it and nothing else is done: it says which rank
gets a new process, which one is to end, where the next generation meets, or that live recovery
cannot go on. Without a word of it for long, or without any weaver at all, the launch process deals
with ends itself.
"""

import os
import selectors
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from torchloom.launch.identity import ProcessId, host_name
from torchloom.launch.later import Later
from torchloom.launch.request import LaunchRequest
from torchloom.rules.leaving import Fence, admit
from torchloom.specs.dataclass import dataclass

if TYPE_CHECKING:  # a launch must start fast: its line is opened when its ranks are on their way
    from torchloom.bus.messages import Head, Message, Register
    from torchloom.bus.regrouping import EndLife, Fork, Lives, MakeStore, Watch
    from torchloom.launch.upline import Upline

_OPEN, _FALL_BACK = "open the line", "fall back"


@dataclass(frozen=True, slots=True)
class Lived:
    """One process of a rank, as `bus.regrouping.Life` tells it."""

    rank: int
    life: int
    node: str
    code: int | None = None
    step: int = -1
    why: str = ""


class Helm(Protocol):
    """What the launch process does on a weaver's word."""

    def may_be_watched(self) -> bool:
        """Tell whether all ranks of the attempt are there, and nobody wants them to end."""

    def asked_for(self, generation: int) -> None:
        """Take note of a generation before anything is done for it."""

    def fork(self, rank: int, life: int, generation: int, node: str) -> str:
        """Have a process of a rank started; return why that cannot be, if so."""

    def end_life(self, rank: int, life: int, reason: str) -> None: ...

    def make_store(self, generation: int, node: str) -> None: ...

    def watched(self, is_live: bool, epoch: int) -> None:
        """Take note that ends are a weaver's business from now on, or no longer."""

    def deal_with_it(self) -> None:
        """Do about ends what is done without a weaver; ends watching."""

    def restart(self, reason: str, cause: str) -> None:
        """Start all again: live recovery cannot go on."""

    def room(self) -> Mapping[str, int]:
        """Return how many ranks each node can have."""


class Watching:
    """The lives of the attempt under way; a run that is not recovered live has none."""

    def __init__(
        self, request: LaunchRequest, selector: selectors.BaseSelector, later: Later, helm: Helm
    ) -> None:
        self.is_on = False
        self._request = request
        self._selector = selector
        self._later = later
        self._helm = helm
        self._incarnation = os.urandom(8).hex()
        self._attempt = request.attempt
        self._fence = Fence(generation=request.generation)
        self._lives: dict[tuple[int, int], Lived] = {}
        self._lost: dict[str, str] = {}
        self._store = ""
        self._stored = self._wanted = -1
        self._heard_at = 0.0
        self._line: Upline | None = None

    # What the launch process tells.

    def begin(self, attempt: int, generation: int, nodes: Mapping[int, str]) -> None:
        """All ranks of an attempt are about to be started, each on its node."""
        self.is_on = False
        self._later.drop(_FALL_BACK)
        self._attempt = attempt
        self._fence = replace(self._fence, generation=generation)
        self._lives = {(rank, 1): Lived(rank, 1, node) for rank, node in nodes.items()}
        self._lost, self._store = {}, ""
        self._stored = self._wanted = -1
        if self._line is not None:
            self._line.introduce()
        else:
            self._later.put(_OPEN, 0.0, self._open)

    def ended(self, rank: int, life: int, code: int, step: int = -1, why: str = "") -> None:
        """Take note of an end; `tell` says it."""
        known = self._lives.get((rank, life))
        if known is not None and known.code is None:
            self._lives[rank, life] = replace(known, code=code, step=step, why=why)

    def node_lost(self, name: str, evidence: str) -> None:
        """A node is gone with all it had."""
        self._lost[name] = evidence
        self.tell()

    def met(self, generation: int, store: str) -> None:
        """A store is there; of two for one generation the first counts."""
        if store and generation == self._wanted and self._stored != generation:
            self._store, self._stored = store, generation
            self.tell()

    def tell(self) -> None:
        """Say how things are, at once."""
        if self._line is not None:
            self._line.tell()

    def unanswered(self) -> None:
        """An end, or a lost node, waits for a weaver's word: for so long and no longer."""
        if self.is_on and _FALL_BACK not in self._later:
            self._heard_at = time.monotonic()
            self._later.put(_FALL_BACK, self._request.live_patience, self._fall_back)

    @property
    def is_unanswered(self) -> bool:
        """Tell whether the last process of a rank is gone."""
        newest = (self.newest(rank) for rank in {one.rank for one in self._lives.values()})
        return any(one and (one.code is not None or one.node in self._lost) for one in newest)

    def stop(self) -> dict[str, str]:
        """Be watched no longer; return the nodes that were lost meanwhile, and how one knows."""
        was_on, self.is_on = self.is_on, False
        self._later.drop(_FALL_BACK)
        return dict(self._lost) if was_on else {}

    def newest(self, rank: int) -> Lived | None:
        """Return the last process of a rank."""
        lives = [one for one in self._lives.values() if one.rank == rank]
        return max(lives, key=lambda one: one.life, default=None)

    def steps(self) -> list[int]:
        """Return how far those came that have ended."""
        return [one.step for one in self._lives.values() if one.code]

    def close(self) -> None:
        """Say no more."""
        self._later.drop(_OPEN)
        self._later.drop(_FALL_BACK)
        if self._line is not None:
            self._line.close()
            self._line = None

    # What is said.

    def _open(self) -> None:
        from torchloom.launch.upline import Upline

        self._line = Upline(self._selector, self._later, self._register, self._told, self.take)
        self._line.open()

    def _head(self) -> "Head":
        from torchloom.bus.head import NO_RANK, VERSION, Head

        job, role = self._request.app_id, self._request.roles[0].name
        return Head(VERSION, job, self._fence.generation, NO_RANK, self._incarnation, role)

    def _register(self) -> "Register":
        from torchloom.bus.messages import Register

        me = ProcessId.mine()
        return Register(
            self._head(),
            role=self._request.roles[0].name,
            local_rank=-1,
            node=host_name(),
            pid=me.pid,
            started=int(me.started) if str(me.started).isdigit() else 0,
            replica="",
            devices=(),
            boundary="none",
            world_size=len({one.rank for one in self._lives.values()}),
            attempt=self._attempt,
        )

    def _told(self) -> "Lives":
        from torchloom.bus.regrouping import Life, Lives

        lives = sorted(self._lives.values(), key=lambda one: (one.rank, one.life))
        return Lives(
            self._head(),
            attempt=self._attempt,
            lives=tuple(
                Life(one.rank, one.life, one.node, one.code, one.step, one.why) for one in lives
            ),
            room=dict(self._helm.room()),
            lost=tuple(self._lost),
            store=self._store,
            stored=self._stored,
        )

    # What is heard.

    def take(self, order: "Message") -> None:
        """Carry out what a weaver says, unless it is an old one's or of what is over."""
        from torchloom.bus.regrouping import EndLife, Fork, MakeStore, Restart, Watch

        assert isinstance(order, Watch | Fork | MakeStore | EndLife | Restart)
        is_ours = order.head.job == self._request.app_id and order.attempt == self._attempt
        if not is_ours:
            return
        self._fence, is_admitted = admit(self._fence, order.epoch, order.head.generation)
        if not is_admitted:
            return
        self._heard_at = time.monotonic()
        self._helm.asked_for(order.head.generation)
        match order:
            case Watch():
                self._watch(order)
            case Restart():
                self._helm.restart(order.reason, order.cause)
            case Fork() if self.is_on:
                self._fork(order)
            case MakeStore() if self.is_on:
                self._make_store(order)
            case EndLife() if self.is_on:
                self._end_life(order)
        self.tell()

    def _watch(self, order: "Watch") -> None:
        if order.is_live == self.is_on:
            return
        if not order.is_live:
            self._helm.watched(False, order.epoch)
            self._helm.deal_with_it()
        elif self._helm.may_be_watched():
            self.is_on = True
            self._helm.watched(True, order.epoch)

    def _fork(self, order: "Fork") -> None:
        """Have a process started, once; where one of its rank still lives, not at all."""
        newest = self.newest(order.rank)
        if newest is None or newest.life >= order.life:
            return
        if newest.code is None and newest.node not in self._lost:
            return
        name = (order.rank, order.life)
        self._lives[name] = Lived(order.rank, order.life, order.node)
        why = self._helm.fork(order.rank, order.life, order.head.generation, order.node)
        if why:
            self._lives[name] = replace(self._lives[name], code=1, why=why)

    def _make_store(self, order: "MakeStore") -> None:
        generation = order.head.generation
        if self._wanted != generation:
            self._wanted, self._store, self._stored = generation, "", -1
        if self._stored != generation:
            self._helm.make_store(generation, order.node)

    def _end_life(self, order: "EndLife") -> None:
        """End a process; one that there never was is as good as killed."""
        known = self._lives.get((order.rank, order.life))
        if known is None:
            newest = self.newest(order.rank)
            node = newest.node if newest else ""
            killed = Lived(order.rank, order.life, node, -int(signal.SIGKILL))
            self._lives[order.rank, order.life] = killed
        elif known.code is None:
            self._helm.end_life(order.rank, order.life, order.reason)

    def _fall_back(self) -> None:
        """Deal with ends ourselves if no weaver has said anything for too long."""
        if not self.is_unanswered:
            return
        left = self._heard_at + self._request.live_patience - time.monotonic()
        if left > 0:
            self._later.put(_FALL_BACK, left, self._fall_back)
        else:
            self._helm.watched(False, self._fence.epoch)
            self._helm.deal_with_it()
