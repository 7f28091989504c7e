"""Live recovery of a training whose loop is a trainer's.

A *unit* is what is repeated when a rank is lost: the part of a step from its first collective to
its last backward pass. What a trainer does between two units (numbers, checkpoints, evaluations)
has collectives, too, and no training state: if it was interrupted, all ranks do it again.
`huggingface_live` and `lightning_live` connect this to their trainers.
"""

import contextlib
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from torchloom.worker.programs.checkpoints import TrainerCheckpoints
from torchloom.worker.programs.program import ObservedProgram
from torchloom.worker.programs.randomness import DatasetRandomness
from torchloom.worker.recovery import recovery
from torchloom.worker.recovery.ddp import RemadeDdp
from torchloom.worker.recovery.recovery import RankRecovery
from torchloom.worker.recovery.transfer.channels import State
from torchloom.worker.run import agreement
from torchloom.worker.run.rng import generator_states, restore_generators
from torchloom.worker.run.tracked_state import TrackedState

T = TypeVar("T")
_KEPT = 3  # pages whose random numbers are remembered
_MOST_DRAWS = 64  # between two units: one for each iterator over data
_NEWCOMER, _BEHIND, _MEMBER = 0, 1, 2  # what a member says of itself; a number above counts
_UNKNOWN_DRAWS = "random numbers are drawn between two steps in a way that is not known"
_APART = "the ranks are at different points between two steps"
_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_OWN_RANDOMNESS = "its dataset draws random numbers, which a newcomer cannot draw again"
Needs = tuple[tuple[str, ...], tuple[str, ...]]  # what a method is called with, and what it uses


def why_changed(label: str, name: str, found: Any, own: Any, needs: Needs) -> str:
    """Return what a method of this version does not take or use; empty if it is as needed.

    `found` is called; `own` is the trainer's, where a subclass has another. `label` has its class.
    """
    parameters, uses = needs
    known = inspect.signature(found).parameters
    takes_all = any(one.kind in _ANY for one in known.values())
    missing = next((one for one in parameters if not takes_all and one not in known), "")
    if missing:
        return f"{name} takes no {missing} in this version"
    code = inspect.unwrap(own).__code__
    unused = next((one for one in uses if one not in (*code.co_names, *code.co_freevars)), "")
    return f"{label} does not use {unused} in this version" if unused else ""


def nothing(*_: Any, **__: Any) -> None:
    """Step no optimizer and no schedule."""


class TrainerState(TrackedState):
    """The model and the optimizers of a trainer, which drops all gradients after each step."""

    def adds_up(self, is_begun: bool) -> bool:
        """Return False: micro-batches of a step are repeated together."""
        return False

    @contextlib.contextmanager
    def before_gradients(self) -> Iterator[None]:
        """Have an optimizer that computes its gradients itself count as one that waits for them."""
        touched, self._is_touched = self._is_touched, False
        yield
        self._is_touched = touched


@dataclass(slots=True)
class Interlude:
    """What a trainer does between two units, with collectives.

    `number` counts those of one step. `rng` and `begun_with` are as it began.
    """

    step: int
    number: int
    again: Callable[[], object]
    rng: Mapping[str, Any]
    begun_with: Callable[[], State]
    is_done: bool = False


class LiveTraining(ABC):
    """The training of one trainer in this process, as live recovery sees it."""

    def __init__(
        self,
        program: ObservedProgram,
        checkpoints: TrainerCheckpoints,
        joined: Callable[[], None],
        randomness: DatasetRandomness,
    ) -> None:
        self.things = TrainerState()
        self.unfit = ""
        self._joined = joined  # called when a newcomer trains
        self._randomness = randomness
        self._program = program
        self._checkpoints = checkpoints
        self._recovery = recovery.opened(self, program.threadlet)
        self._at = -1  # the step whose unit has begun
        self._first = -1  # the step that this attempt began with
        self._rng: Mapping[str, Any] = {}  # at the begin of this unit
        self._pages: dict[int, Mapping[str, Any]] = {}  # random generators by the step of a page
        self._given: State | None = None  # this rank's page, as it was given back to it
        self._draws: int | None = None  # of a peer, from the page to the begin of the unit
        self._interlude: Interlude | None = None  # the last one since the last unit
        self._handed: State | None = None  # a peer's interlude, for a newcomer
        self._common: State = {}  # a peer's state, for a newcomer
        self._expected = -1  # the step that a newcomer has set up for
        self._is_redone = False  # what was between two steps
        self._is_behind = False  # a peer has finished this rank's step

    @property
    def is_live(self) -> bool:
        """Tell whether a loss may be recovered live."""
        return self._recovery is not None and self._recovery.is_live

    @property
    def is_joining(self) -> bool:
        """Tell whether this process replaces another one and has not joined the others yet."""
        return self._recovery is not None and self._recovery.is_new

    # What a framework adds.

    @abstractmethod
    def reached(self) -> int:
        """Return how many steps of the run are done."""

    @abstractmethod
    def own_state(self) -> State:
        """Return what only this rank has, as it will be at the end of this unit."""

    @abstractmethod
    def common_state(self) -> State:
        """Return what all ranks have alike, after the last step."""

    @abstractmethod
    def take_state(self, common: State, own: State | None) -> None:
        """Load both as a newcomer."""

    @abstractmethod
    def take_step(self, common: State, load: Callable[[], None]) -> None:
        """Finish a step that a peer has finished: `load` loads its weights and its optimizer."""

    @abstractmethod
    def redo_as_newcomer(self, interlude: State) -> None:
        """Do with the others what they do again after the last step."""

    @abstractmethod
    def why_not(self) -> str:
        """Return why a loss means that all ranks are restarted; empty if it does not."""

    @abstractmethod
    def carry(self) -> None:
        """Track the model, the optimizers and what else has a state."""

    def why_broken(self) -> str:
        """Return why an interrupted interlude cannot be done again; empty if it can."""
        return ""

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """Return what surrounds each wait for the other ranks."""
        return contextlib.nullcontext()

    def send_records(self) -> None:
        """Send what this process has recorded, before it ends."""
        self._program.threadlet.finish()

    # From the first unit to the last.

    def track(self, ddp: RemadeDdp, **things: Any) -> None:
        """Carry a trainer's DDP, optimizers and what else has a state."""
        model: Any = ddp
        self.things.models["model"] = model
        self.things.track(things)

    def start(self) -> None:
        """Before the first unit: carry the trainer's state, and report whether it is live."""
        why = self.why_not()
        if not why:
            self.carry()
        if not self.is_joining:
            self.begin(why)
        elif why:
            raise RuntimeError(f"loom: cannot join the others: {why}")

    def begin(self, why: str) -> None:
        """Report before the first unit that this rank trains, or why a loss means a restart."""
        if self._recovery is None:
            return
        if why:
            self._report(why)
        self._first = self.reached()
        self._pages[self._first - 1] = generator_states()
        self._recovery.begin(self._first, why)

    def foresee(self) -> int | None:
        """Return the step at which a newcomer joins the others; None in any other process."""
        if self._recovery is None or not self.is_joining:
            return None
        with self.waiting():
            return self._recovery.foresee()

    def enter_unit(self, own_draws: int | None) -> None:
        """Begin a unit; a newcomer joins the others first.

        `own_draws` is how often its loop has drawn a random number since the step before.
        """
        if self.is_joining:
            self._arrive(own_draws)
        if self._recovery is None:
            return
        self._at, self._is_behind = self.reached(), False
        self._rng = generator_states()
        self.things.begin_step()

    def note(self) -> None:
        """Write this rank's page, between the last forward and the last backward pass."""
        if self._recovery is not None and self.is_live:
            self._given = None
            self._recovery.note(self._at)

    def has_noted(self) -> bool:
        """Tell whether the page of this unit is written."""
        return self._at in self._pages

    def check_data(self) -> None:
        """Give up if the dataset draws random numbers of its own."""
        if self._randomness.draws:
            self.give_up(_OWN_RANDOMNESS)

    def give_up(self, why: str) -> None:
        """Report that a loss is no longer recovered live."""
        if self._recovery is not None and self.is_live:
            self._report(why)
            self._recovery.give_up(self._at, why)

    def _report(self, why: str) -> None:
        """Report why a loss means a restart, where there are other ranks."""
        threadlet = self._program.threadlet
        if threadlet.identity.rank == 0 and agreement.together():
            threadlet.event("not_live", {"why": why})

    def attempt(self, act: Callable[[], T], again: Callable[[], T]) -> T:
        """Return the result of `act`; of `again`, with the new members, where a rank is lost."""
        live = self._recovery
        if live is None:
            return act()
        while True:
            error: Exception | None = None
            try:
                if not (live.is_live and live.is_over):
                    return act()
            except Exception as caught:
                if not live.is_live:
                    raise
                error = caught
            self._recover(live, error)
            act = self._settled(again)

    def pass_between(self, act: Callable[[], None], state: Callable[[], State]) -> None:
        """Do what the trainer does between two units; `state` returns what it has begun with."""
        self._at, step, last = -1, self.reached(), self._interlude
        number = last.number + 1 if last is not None and last.step == step else 0
        self._interlude = one = Interlude(step, number, act, generator_states(), state)

        def first() -> None:
            act()
            one.is_done = True

        self.attempt(first, lambda: None)

    def finish(self, own_draws: int | None) -> None:
        """Wait at the end of the training until no rank has a step left."""
        if self.is_joining:
            self._arrive(own_draws)
        live = self._recovery
        if live is None:
            return
        self._at = -1
        while live.is_live and not live.has_finished(self.reached()):
            self._recover(live, None)
            self.attempt(self._settled(lambda: None), lambda: None)

    def leave(self) -> None:
        """End what an exception has ended."""
        if self._recovery is not None and self.is_live:
            self._recovery.leave(self.reached())

    # With new members.

    def _recover(self, live: RankRecovery, error: Exception | None) -> None:
        is_unit = self._at >= 0
        step = self._at if is_unit else self.reached()
        self._is_behind = False
        why = self.unfit or self._why_lost(is_unit)
        with self.waiting():
            live.recover(step, error, why)
        if is_unit and not self._is_behind:
            restore_generators(self._rng)

    def _why_lost(self, is_unit: bool) -> str:
        interlude = self._here()
        if interlude is not None and not interlude.is_done:
            return self.why_broken()
        return _UNKNOWN_DRAWS if is_unit and self._draws_to_unit() is None else ""

    def _settled(self, again: Callable[[], T]) -> Callable[[], T]:
        def act() -> T:
            self._settle()
            return again()

        return act

    def _settle(self) -> None:
        """Do again what the members do between two steps, if one was interrupted in it."""
        interlude, self._is_redone = self._here(), False
        marks = agreement.gather(self._mark(interlude))
        if not any(mark > _BEHIND and mark % 2 for mark in marks):
            return
        if len({mark // 2 for mark in marks if mark > _BEHIND}) > 1:
            self.give_up(_APART)
            raise RuntimeError(f"loom: cannot continue with the new members: {_APART}")
        if self._handed is not None:
            restore_generators(self._page_of_step_before())
            self.redo_as_newcomer(self._handed)
        elif interlude is not None:
            interlude.is_done = False
            restore_generators(interlude.rng)
            interlude.again()
            interlude.is_done = True
        self._is_redone = True
        if self._at >= 0 and not self._is_behind:
            restore_generators(self._rng)

    def _mark(self, interlude: Interlude | None) -> int:
        """Return a number for what the others must know; odd if an interlude was interrupted."""
        if self._handed is not None:
            return _NEWCOMER
        if self._is_behind:
            return _BEHIND
        if interlude is None:
            return _MEMBER
        return _MEMBER + 2 * (1 + interlude.number) + (not interlude.is_done)

    def _here(self) -> Interlude | None:
        """Return the interlude after the last step."""
        one = self._interlude
        return one if one is not None and one.step == self.reached() else None

    def _page_of_step_before(self) -> Mapping[str, Any]:
        return self._pages[self.reached() - 1]

    def _arrive(self, own_draws: int | None) -> None:
        """Join the others, and make this process one of them at the begin of its unit."""
        assert self._recovery is not None
        here, self._expected = generator_states(), self.reached()
        with self.waiting():
            self._recovery.arrive()
        private = self._given
        self._pages[self._expected - 1] = private["rng"] if private is not None else here
        restore_generators(self._page_of_step_before())

        def align() -> None:
            if private is not None:
                advance(own_draws if self._is_redone else self._draws)

        self.attempt(self._settled(align), align)
        self._handed = None
        self._joined()

    # As `RankRecovery` needs it.

    def is_begun(self, step: int) -> bool:
        """Tell whether the unit of a step has begun."""
        return self._at == step

    def common(self) -> State:
        """Return the state that a joining rank can get from any peer."""
        interlude = self._here()
        return {
            **self.things.common(),
            "orders": self._program.threadlet.orders(),
            "saves": self._checkpoints.state(),
            "trainer": self.common_state(),
            "interlude": {} if interlude is None else interlude.begun_with(),
            "draws": self._draws_to_unit() if self._at >= 0 else None,
            "first": self._first,
        }

    def private(self) -> State:
        """Return the state that only this rank has."""
        if self._given is not None:
            return self._given
        states = generator_states()
        if self._at >= 0:
            self._pages[self._at] = states
            self._pages.pop(self._at - _KEPT, None)
        return {**self.things.private(), "rng": states, "trainer": self.own_state()}

    def rejoin(self, start: int, generation: int, common: State | None) -> None:
        """Continue at a step of a generation, with the state of a peer if one sent it."""
        if common is not None and self.is_joining:
            self._join(start, common)
        elif common is not None:
            self._is_behind = True
            restore_generators(self._rng)
            self.take_step(common, lambda: self.things.take_common(common))
            self._program.threadlet.optimizers.take_over(common["orders"]["rules"])
        models: Mapping[str, Any] = self.things.models
        for model in models.values():
            model.is_steady = start > self._first
        self._checkpoints.rejoin(start, generation, None if common is None else common["saves"])

    def take_private(self, private: State | None) -> None:
        """Load the state that only this rank had."""
        self._given = private
        if private is not None:
            self.things.take_private(private)
        if self.is_joining:
            own = None if private is None else private["trainer"]
            self.take_state(self._common, own)

    def _join(self, start: int, common: State) -> None:
        if start != self._expected:
            sys.stderr.write(f"loom: the others went on to step {start} during the set-up\n")
            raise SystemExit(1)  # the next newcomer begins there
        self._first, self._draws = common["first"], common["draws"]
        self._common, self._handed = common["trainer"], common["interlude"]
        self.things.take_common(common)
        self._program.threadlet.catch_up(start, common["orders"])

    def _draws_to_unit(self) -> int | None:
        """Return how often a random number was drawn from the last page to this unit."""
        page = self._pages.get(self._at - 1)
        return None if page is None else count_draws(page, self._rng)


def count_draws(before: Mapping[str, Any], after: Mapping[str, Any]) -> int | None:
    """Return how many 64-bit numbers torch's generator has drawn between two states.

    That is what an iterator over data draws. None if it was something else.
    """
    if before["random"] != after["random"] or not _is_same_numpy(before["numpy"], after["numpy"]):
        return None
    generator = torch.Generator()
    generator.set_state(before["torch"])
    for count in range(_MOST_DRAWS):
        if torch.equal(generator.get_state(), after["torch"]):
            return count
        torch.empty((), dtype=torch.int64).random_(generator=generator)
    return None


def advance(draws: int | None) -> None:
    """Draw as many numbers as `count_draws` has counted."""
    if draws is None:
        raise RuntimeError(f"loom: cannot continue for a lost rank: {_UNKNOWN_DRAWS}")
    for _ in range(draws):
        torch.empty((), dtype=torch.int64).random_()


def _is_same_numpy(before: Any, after: Any) -> bool:
    if before is None or after is None:
        return after is None
    name, keys, *rest = before
    name_now, keys_now, *rest_now = after
    return name == name_now and rest == rest_now and bool((keys == keys_now).all())
