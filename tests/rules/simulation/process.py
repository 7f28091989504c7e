"""A rank's process: its prologue, its steps, and what it does when its generation is over."""

from typing import TYPE_CHECKING, Any

from torchloom.messages.base import VERSION, Head
from torchloom.messages.membership import (
    Arrived,
    Broke,
    Finished,
    FromMember,
    Given,
    Go,
    JoinGeneration,
    LetStand,
    NotRestored,
    Release,
    Restored,
    Training,
    Transfer,
)
from torchloom.rules.membership.election import RecoveryMode, What, page_for
from torchloom.rules.membership.events import MemberReport
from torchloom.rules.membership.faults import FaultOwner, GenerationNews
from torchloom.rules.membership.seats import MemberProcess

from . import model
from .model import Part

if TYPE_CHECKING:
    from .node import Node
    from .world import World

TRAINING = frozenset({"forward", "reduce", "optimize", "asking", "finished"})


class Process:
    """One life of a rank."""

    def __init__(
        self,
        world: "World",
        node: "Node",
        who: MemberProcess,
        generation: int,
        mode: RecoveryMode,
    ) -> None:
        self.world, self.node, self.who = world, node, who
        self.rank = who.rank
        self.clock = world.clock
        self.phase = "prologue"
        self.turn = 0  # what was scheduled in an earlier one no longer counts
        self.is_stopped = False
        self.stopped_at = 0.0
        self.mailbox: list[Any] = []  # what came while it was stopped
        self.generation = -1  # in which it trains, or trained last
        self.target = generation  # for which it is on its way
        self.applied: int | None = None
        self.shared = 0
        self.own = model.first_own(self.rank)
        self.result = 0
        self.is_leaving = False
        self.is_exception_own = False
        self.is_collective = False
        self.heard = GenerationNews.NOTHING
        self.asked_at = 0.0
        self.copy = -1  # the newest one that all are known to have
        self.uses_collectives = world.setting.uses_collectives and mode is RecoveryMode.LIVE
        seconds, code = world.prologue()
        self._then(seconds, self._exit if code else self._park_first, *([code] if code else []))

    def __repr__(self) -> str:
        return f"{self.rank}.{self.who.life}@{self.who.node}"

    def _then(self, seconds: float, act: Any, *words: Any) -> None:
        self.turn += 1
        self.clock.after(seconds, self._act, self.turn, act, words)

    def _act(self, turn: int, act: Any, words: Any) -> None:
        if turn != self.turn:
            return
        if self.is_stopped:
            self.clock.after(0.3, self._act, turn, act, words)
            return
        act(*words)

    def _exit(self, code: int) -> None:
        self.node.ended(self, code)

    # Orders.

    def receive(self, order: Any) -> None:
        """Obey the weaver's word; what is of an older generation is none."""
        if self.is_stopped:
            self.mailbox.append(order)
            return
        generation = order.head.generation
        match order:
            case JoinGeneration() if generation > self.generation:
                self._notified(generation)
            case Transfer() if generation == self.target:
                self._take(order)
            case Go() if generation == self.target:
                self._go(order)
            case LetStand() if self.phase == "asking" and generation == self.generation:
                self.heard = GenerationNews.STANDS
            case Release() if self.phase == "finished" and generation == self.generation:
                self._exit(0)

    def _say(self, message: FromMember) -> None:
        self.node.say(MemberReport(self.who, message, self.node.copies_of(self.rank)))

    def _at(self, generation: int) -> Head:
        return Head(VERSION, "", generation, self.rank, "")

    def resume(self) -> None:
        self.is_stopped = False
        letters, self.mailbox = self.mailbox, []
        for order in letters:
            self.receive(order)

    def _notified(self, generation: int) -> None:
        if generation < self.target:
            return
        is_further = generation > self.target
        self.target = generation
        if self.phase == "optimize":
            self.is_leaving = True  # an optimizer's step is not interrupted
        elif self.phase in TRAINING:
            self.leave()
        elif self.phase == "taking" and is_further:
            if not self.world.setting.is_staged:
                self.applied = None
            self._park()
        elif self.phase == "ready" and is_further:
            self._park()
        elif self.phase == "parked":
            self._say_arrived()

    # Between two generations.

    def leave(self) -> None:
        """Drop the group; whoever still waits for us in it gets an error."""
        self.is_leaving = False
        self.world.group(self.generation).leave(self)
        self._park()

    def _park_first(self) -> None:
        self._park()

    def _park(self) -> None:
        self.turn += 1
        self.phase = "parked"
        self._say_arrived()

    def _say_arrived(self) -> None:
        pages = tuple(sorted(self.node.pages_of(self.rank)))
        why = "it uses collectives" if self.uses_collectives else ""
        self._say(Arrived(self._at(self.target), self.applied, pages, why))

    def _take(self, order: Transfer) -> None:
        if self.phase == "ready":
            self._say_restored()
        if self.phase != "parked":
            return
        self.phase = "taking"
        mean = self.clock.rng.choice((0.001, 0.02))
        self._then(mean * self.clock.rng.random(), self._took, order)

    def _took(self, plan: Transfer) -> None:
        if self.world.is_cut(self) or self.world.is_apart([self]):
            self._say(Broke(self._at(self.target), 0, is_collective=True))
            self._then(0.5, self._took, plan)
            return
        if self.world.corrupts(plan):
            self.applied = self.applied if self.world.setting.is_staged else None
            self._park_quietly()
            self._say(NotRestored(self._at(self.target), "hash"))
            return
        if not all(self._apply(move) for move in plan.given if move.target == self.rank):
            self._then(0.2, self._took, plan)
            return
        if not plan.given:
            self.shared = model.first_shared(self.world.setting.holding, self.rank)
        if plan.start == 0:
            self.own = model.first_own(self.rank)
        self.applied = plan.start
        self._begin_at(plan.start)
        self.phase = "ready"
        self.turn += 1
        self._say_restored()

    def _park_quietly(self) -> None:
        self.turn += 1
        self.phase = "parked"

    def _begin_at(self, start: int) -> None:
        """Have the keeper hold what this start needs, and nothing of what was undone."""
        page = page_for(start)
        if page is not None:
            self.node.put_page(self.rank, page, self.own)
        self.node.drop_copies(self.rank, newer_than=start)
        self.copy = -1

    def _apply(self, move: Given) -> bool:
        match move.what:
            case What.STATE:
                source = self.world.member(move.source)
                if source is None or source.target != self.target or source.applied != move.step:
                    return False
                self.shared = source.shared
            case What.PRIVATE:
                page = self.world.page_of(move.source, move.step)
                if page is None:
                    return False
                self.own = page
            case What.PAGE:
                page = self.node.page(self.rank, move.step)
                if page is None:
                    return False
                self.own = page
            case What.COPY:
                part = self.world.copy_of(move.source, self.rank, move.step)
                if part is None:
                    return False
                self.shared, self.own = part.shared, part.own
            case What.CHECKPOINT:
                parts = self.world.storage.committed.get(move.step)
                if parts is None:
                    return False
                part = parts[self.rank]
                self.shared, self.own = part.shared, part.own
        return True

    def _say_restored(self) -> None:
        self._say(Restored(self._at(self.target)))

    def _go(self, order: Go) -> None:
        if self.phase in TRAINING and self.generation == order.head.generation:
            self._say(Training(self._at(self.generation), order.start))
        if self.phase != "ready":
            return
        self.world.checks.starts(self, order)
        self.generation = order.head.generation
        self.world.group(self.generation).join(self)
        self._say(Training(self._at(self.generation), order.start))
        self._next_step()

    # Steps.

    def _next_step(self) -> None:
        assert self.applied is not None
        if self.applied >= self.world.setting.steps:
            self.phase = "finished"
            self.world.has_seen_finish = True
            self._say_finished()
            return
        self.world.boundary(self)
        self.phase = "forward"
        self._then(0.001 + 0.004 * self.clock.rng.random(), self._forward)

    def _say_finished(self) -> None:
        self._say(Finished(self._at(self.generation), self.applied or 0))
        self._then(1.0, self._say_finished)

    def _forward(self) -> None:
        step = self.applied or 0
        how = self.world.exception_in(self.rank, step)
        if how == "quit":
            self._exit(0)
            return
        if how:
            self.has_exception(is_collective=how == "like_a_peer", is_own=True)
            return
        self.own = model.forward(self.own, step, self.rank)
        self.node.put_page(self.rank, step, self.own)
        self.phase = "reduce"
        self.turn += 1
        gradient = model.gradient(self.shared, self.own, step, self.rank)
        held = self.node.newest_held(self.rank, self.world.setting.ranks)
        self.world.group(self.generation).give(self, step, gradient, held)

    def reduced(self, result: int, copy: int) -> None:
        if copy > self.copy:
            self.copy = copy
            self.node.drop_copies(self.rank, older_than=copy)
        self.result = result
        self.phase = "optimize"
        self._then(0.0005 + 0.002 * self.clock.rng.random(), self._optimize)

    def _optimize(self) -> None:
        step = self.applied or 0
        before = self.shared
        self.shared = model.optimize(self.shared, self.result, step)
        self.applied = step + 1
        self.world.checks.applied(self, before)
        if self.is_leaving:
            self.leave()
        else:
            self._next_step()

    # Exceptions.

    def has_exception(self, is_collective: bool, is_own: bool) -> None:
        self.phase = "asking"
        self.is_collective, self.is_exception_own = is_collective, is_own
        self.heard, self.asked_at = GenerationNews.NOTHING, self.clock.now
        self.clock.note(self, "has an exception of", "its own" if is_own else "a peer")
        self._ask()

    def _ask(self) -> None:
        waited = self.clock.now - self.asked_at
        whose = self.world.laws.whose(self.heard, waited, self.is_collective)
        if whose is FaultOwner.OWN:
            self.world.checks.raises(self)
            self._exit(1)
            return
        self._say(Broke(self._at(self.generation), 0, self.is_collective))
        self._then(0.25, self._ask)

    def part(self) -> Part:
        return Part(self.shared, self.own)

    @property
    def is_training(self) -> bool:
        return self.phase in TRAINING
