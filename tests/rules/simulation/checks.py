"""What must hold after every event; whatever does not ends the run with the seed in its words."""

from typing import TYPE_CHECKING

from torchloom.messages.membership import Go
from torchloom.rules.membership.election import Cause, Holding, RecoveryMode, StateOrigin
from torchloom.rules.membership.events import GenerationCommitted, RestartBegan
from torchloom.rules.membership.generation import GenerationPhase, GenerationRecord
from torchloom.rules.membership.seats import seat_of

from .faults import LASTING
from .model import Undisturbed

if TYPE_CHECKING:
    from .process import Process
    from .world import World


class Broken(AssertionError):
    """An invariant does not hold."""


class Checks:
    """The invariants, and what they need to remember."""

    def __init__(self, world: "World") -> None:
        self.world = world
        setting = world.setting
        self.expected = Undisturbed(setting.holding, setting.ranks, setting.steps)
        self.is_exact = True
        self.actors: dict[tuple[int, int], object] = {}  # who trained, by generation and rank
        self.committed: set[int] = set()  # generations
        self.began_at = 0.0  # the recovery that goes on
        self.able: list[Process] = []  # who could have gone on when all were ended
        self.ledger: dict[tuple[int, int, int], int] = {}  # the state before, by rank and state

    def that(self, holds: bool, words: str, *facts: object) -> None:
        """Break the run unless this holds; the words have a brace for each fact."""
        if not holds:
            raise Broken(f"seed {self.world.setting.seed}: {words.format(*facts)}")

    def stores(self, before: GenerationRecord, after: GenerationRecord) -> None:
        """Generations grow by one, and what has ended stays so."""
        grown = after.generation - before.generation
        self.that(grown in (0, 1), "generation {} -> {}", before.generation, after.generation)
        ended = (GenerationPhase.COMPLETE, GenerationPhase.FAILED)
        self.that(before.phase not in ended or after.phase is before.phase, "it ended twice")
        lives = zip(before.seats, after.seats, strict=True)
        self.that(all(new.life >= old.life for old, new in lives), "an old life came back")
        self.plans(before, after)
        is_training = after.phase is GenerationPhase.TRAINING
        if before.phase is GenerationPhase.TRAINING and not is_training:
            self.began_at = self.world.clock.now
        if after.attempt > before.attempt:
            self.able = self.world.healthy()

    def commits(self, told: GenerationCommitted) -> None:
        """Every member has what it needs, and no step that survives anywhere is lost."""
        world, plan = self.world, told.plan
        self.that(told.generation not in self.committed, "committed twice")
        self.committed.add(told.generation)
        self.is_exact = not told.inexact
        lost = set(plan.inexact) - world.excused
        self.that(not lost, "pages of ranks {} should be there", lost)
        for rank in range(world.setting.ranks):
            process = world.member(rank)
            if process is not None:
                at = (process.phase, process.target, process.applied)
                wanted = ("ready", told.generation, plan.start)
                self.that(at == wanted, "{} counts as {} and is {}", process, wanted, at)

    def plans(self, before: GenerationRecord, record: GenerationRecord) -> None:
        """Look at a plan at the moment it is stored: nothing newer is there to go on from."""
        plan, world = record.plan, self.world
        if (
            plan is None
            or record.phase is not GenerationPhase.MOVING
            or before.phase is GenerationPhase.MOVING
        ):
            return
        latest = world.storage.latest()
        saved = -1 if latest is None else latest
        if plan.origin is StateOrigin.PEER:
            seen = [p.applied for p in world.members() if p.applied is not None]
            best = max(seen, default=0)
            self.that(plan.start >= best, "step {} is lost: it goes on at {}", best, plan.start)
            return
        held = [key for p in world.members() for key in p.node.copies_of(p.rank)]
        whose = {step: {rank for rank, of in held if of == step} for _, step in held}
        best = max(
            (s for s, ranks in whose.items() if len(ranks) == world.setting.ranks), default=-1
        )
        best = max(best, saved)
        self.that(plan.start >= best, "step {} is lost: it goes on at {}", best, plan.start)

    def restarts(self, told: RestartBegan) -> None:
        """Survivors are given up only for a reason that can be seen from outside."""
        world, now, cause = self.world, self.world.clock.now, told.cause
        struck = set(world.faults.struck)
        is_so = {
            Cause.LIVE_WAIT: now - self.began_at >= world.setting.limits.live_wait - 1e-6,
            Cause.PAGES: bool(world.excused),
            Cause.NO_SURVIVOR: not self.able,
            Cause.PROLOGUE: world.setting.uses_collectives,
            Cause.LEFT: "quit" in struck,
            Cause.NO_STATE: not any(map(self._is_whole, world.members())),
            Cause.NO_COPY: world.setting.holding is Holding.SHARDED,
        }
        holds = is_so.get(cause, True)
        self.that(holds, "restarted for {}, which is not so: {}", cause, self.able)

    def _is_whole(self, process: "Process") -> bool:
        applied = process.applied
        return applied is not None and process.shared == self.expected.shared[applied][process.rank]

    def starts(self, process: "Process", order: Go) -> None:
        """A process that begins to train is the only one of its rank, and all that is stored."""
        record, generation = self.world.record, order.head.generation
        key = (generation, process.rank)
        other = self.actors.setdefault(key, process.who)
        self.that(other == process.who, "{} and {} are one rank", other, process.who)
        self.that(process.generation < generation, "an old generation began again")
        is_stored = record.generation > generation or (
            record.generation == generation
            and record.phase
            in (GenerationPhase.TRAINING, GenerationPhase.COMPLETE, GenerationPhase.FAILED)
        )
        words = "{} trains in {}, which is not stored"
        self.that(is_stored, words, process, generation)
        self.that(process.applied == order.start, "{} is not at {}", process, order.start)
        self.that(generation in self.world.stores, "a generation without a store")

    def applied(self, process: "Process", before: int) -> None:
        """A step has the bits of the undisturbed run, and is not of a generation that is over."""
        record, step = self.world.record, process.applied or 0
        self.ledger[process.rank, step, process.shared] = before
        has_seat = seat_of(record.seats, process.who) is not None
        cursor = process.own.cursor
        words = "{} took sample {} in step {}"
        self.that(cursor == step, words, process, cursor - 1, step - 1)
        is_old = process.generation < max(self.committed, default=-1)
        self.that(not (has_seat and is_old), "{} acts in {}", process, process.generation)
        if not self.is_exact:
            return
        expected = self.expected.shared[step][process.rank]
        words = "{} has other bits after step {}"
        self.that(process.shared == expected, words, process, step - 1)
        own = self.expected.own[step][process.rank]
        words = "{} has other buffers after step {}"
        self.that(process.own == own, words, process, step - 1)

    def killed(self, process: "Process") -> None:
        record = self.world.record
        seat = seat_of(record.seats, process.who)
        may_live = seat is not None and seat.is_up and record.phase is not GenerationPhase.FAILED
        self.that(not may_live, "{} was killed for another's fault", process)

    def raises(self, process: "Process") -> None:
        self.that(process.is_exception_own, "{} died of a peer's fault", process)

    def ends(self) -> None:
        """A run that is complete has every step once, on every rank."""
        world = self.world
        if world.record.phase is not GenerationPhase.COMPLETE:
            struck = world.faults.struck
            is_much = len(struck) >= world.setting.limits.restarts or LASTING & set(struck)
            self.that(bool(is_much), "it failed for no more than {}", struck)
            return
        steps, replicated = world.setting.steps, world.setting.holding is Holding.REPLICATED
        for rank, (applied, shared) in world.results.items():
            self.that(applied == steps, "rank {} ended after step {}", rank, applied)
            if self.is_exact:
                expected = self.expected.shared[steps][rank]
                self.that(shared == expected, "rank {} ended with other bits", rank)
            for step in range(steps, 0, -1):
                key = (rank, step, shared)
                others = [(r, step, shared) for r in range(world.setting.ranks) if replicated]
                found = next((k for k in (key, *others) if k in self.ledger), None)
                words = "step {} of rank {} was never done"
                self.that(found is not None, words, step - 1, rank)
                shared = self.ledger[found]  # type: ignore[index]

    def __str__(self) -> str:
        return f"{len(self.committed)} generations, exact: {self.is_exact}"


def _label(phase: GenerationPhase, mode: RecoveryMode) -> str:
    return (
        f"{phase}/{mode}"
        if phase in (GenerationPhase.GATHERING, GenerationPhase.MOVING)
        else str(phase)
    )


LABELS = {(phase, mode): _label(phase, mode) for phase in GenerationPhase for mode in RecoveryMode}


def label(record: GenerationRecord) -> str:
    """Return the state of the rule as coverage counts it."""
    return LABELS[record.phase, record.mode]
