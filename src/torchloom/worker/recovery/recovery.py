"""How a rank continues with other members: leave, meet, take what is given, train again.

`membership` has the protocol, `transfer.moves` moves the states; this module puts them in order.
"""

import gc
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch.distributed

from torchloom.bus.progress_page import StepPhase
from torchloom.messages.membership import Transfer
from torchloom.rules.membership.election import What
from torchloom.rules.membership.faults import FaultOwner
from torchloom.worker import environment
from torchloom.worker.environment import GENERATION_VARIABLE
from torchloom.worker.recovery import leave, standin
from torchloom.worker.recovery.leave import DefaultGroup, NotMet
from torchloom.worker.recovery.membership import Member, MembershipLink, RankPosition
from torchloom.worker.recovery.pages import OwnPages
from torchloom.worker.recovery.transfer.moves import NotTaken, Taken, give_and_take
from torchloom.worker.run import agreement
from torchloom.worker.run.tracked_state import State, TrackedState
from torchloom.worker.threadlet.threadlet import Threadlet

_FILE, _TCP = "file://", "tcp://"
_PAUSE = 0.001  # seconds between two checks for the others
_CONNECT = 10.0  # seconds for members that were all there a moment ago
_TIMEOUT = 1800.0  # seconds of a collective, where the job sets no limit for hangs
_ADDED_UP = "gradients are added up over several steps"
_LEFT = "the program has left its loop by itself"


_dist: Any = torch.distributed  # torch declares no types for its stores


def never() -> bool:
    """Return False: the generation is not over."""
    return False


def join(
    store: str,
    rank: int,
    world_size: int,
    backend: str,
    timeout: float,
    is_over: Callable[[], bool] = never,
    patience: float = 30.0,
) -> DefaultGroup:
    """Return the group of all members, once they are there.

    `timeout` is for the group's collectives. While it waits for the others it checks `is_over` all
    the time: a member that dies meanwhile never comes.
    """
    found = _store(store, patience)
    _meet(found, rank, world_size, is_over, time.monotonic() + patience)
    backends = "cpu:gloo,cuda:nccl" if backend == "nccl" else backend  # states travel over gloo

    def make() -> None:
        _dist.init_process_group(
            backends,
            store=found,
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=min(_CONNECT, timeout)),
        )

    try:
        group = DefaultGroup.opened(make)
    except (RuntimeError, ValueError) as error:
        if _dist.is_initialized():
            _dist.destroy_process_group()
        raise NotMet(f"the members of {store} could not connect: {error}") from error
    _dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout))
    return group


def _store(address: str, patience: float) -> Any:
    limit = timedelta(seconds=patience)
    if address.startswith(_FILE):
        store = _dist.FileStore(address.removeprefix(_FILE), -1)
        store.set_timeout(limit)
        return store
    host, _, port = address.removeprefix(_TCP).rpartition(":")
    try:
        return _dist.TCPStore(
            host.strip("[]"), int(port), is_master=False, wait_for_workers=False, timeout=limit
        )
    except RuntimeError as error:
        raise NotMet(f"no store at {address}: {error}") from error


def _meet(
    store: Any, rank: int, world_size: int, is_over: Callable[[], bool], deadline: float
) -> None:
    """Wait until all members have come to the store."""
    here = [f"here/{each}" for each in range(world_size)]
    try:
        store.set(here[rank], "")
        while not store.check(here):
            if is_over():
                raise NotMet("the generation was over before its members had met")
            if time.monotonic() > deadline:
                raise NotMet("a member did not come to the store")
            time.sleep(_PAUSE)
    except RuntimeError as error:
        raise NotMet(f"the store is gone: {error}") from error


class RecoverableRun(Protocol):
    """The training whose state is restored when a step is repeated."""

    @property
    def things(self) -> TrackedState: ...

    unfit: str  # why it cannot be a newcomer, if so

    def common(self) -> State: ...
    def private(self) -> State: ...
    def is_begun(self, step: int) -> bool: ...
    def rejoin(self, start: int, generation: int, common: State | None) -> None: ...
    def take_private(self, private: State | None) -> None: ...


class RankRecovery:
    """Live recovery in one rank: its way from one generation of its job to the next."""

    def __init__(
        self, course: RecoverableRun, threadlet: Threadlet, link: MembershipLink, pages: OwnPages
    ) -> None:
        self.is_new = standin.is_on()
        self.is_live = False  # whether an exception may be a peer's
        self._course = course
        self._threadlet = threadlet
        self._pages = pages
        self._member = Member(
            link, threadlet.identity.head(), self.is_new, is_known=threadlet.control.welcomed.is_set
        )
        self._backend = agreement.backend()
        self._group: leave.DefaultGroup | None = None
        self._has_left = False
        self._foreseen: Transfer | None = None  # a newcomer's part, while it is being set up
        self._applied: int | None = None  # steps; none without a whole state
        link.watch(self._generation_over)

    @property
    def is_over(self) -> bool:
        """Return whether members change: the step under way is left at the next boundary."""
        return self._member.is_over

    def loop(self) -> int:
        """Return the loop that the rank's process before was in by its last page; 0 without one."""
        steps = self._pages.steps()
        page = self._pages.read(steps[-1]) if steps else None
        return int(page["loop"]) if page else 0

    def begin(self, step: int, why: str = "") -> None:
        """Report before the first step of a loop that this rank trains, and whether it is live.

        `why` says why it cannot be.
        """
        self._group = leave.current()
        why = why or _unfit(self._course.things, self._group)
        self._has_left = False
        self.is_live = not why and self._has_page(step - 1)
        self._member.train(step, why or ("" if self.is_live else "its page cannot be written"))

    def note(self, step: int) -> None:
        """Write the page of a step: this rank's private state before the backward pass."""
        if self.is_live and not self._has_page(step):
            self.give_up(step, "its page cannot be written")

    def give_up(self, step: int, why: str) -> None:
        """Report that from now on a loss is no longer recovered live."""
        self.is_live = False
        self._member.train(step, why)

    def recover(self, step: int, error: BaseException | None, why: str = "") -> int:
        """Handle what interrupted a step; return the step to continue at.

        An exception that is the program's own is raised. `why` says why this rank cannot continue
        without a restart.
        """
        begun = time.monotonic()
        self._enter(StepPhase.WAITING)
        if error is not None:
            self._judge(step, error)
            _release(error)
            error = None
        is_begun, things = self._course.is_begun(step), self._course.things
        why = why or (_ADDED_UP if things.adds_up(is_begun) else "")
        self._applied = None if is_begun and not things.is_whole() else step
        return self._rejoin(begun, why)

    def foresee(self) -> int:
        """Meet the others as a newcomer that is still being set up; return the step they are at.

        They wait for it until it arrives. If another rank is lost before that, they may be at
        another step by then.
        """
        why = self._why_late()
        self._foreseen = self._member.meet(lambda: self._position(why))
        return self._foreseen.start

    def arrive(self) -> int:
        """Join the others as a newcomer; return the step they are at."""
        start = self._rejoin(time.monotonic(), self._why_late())
        self.is_new = False
        return start

    def _why_late(self) -> str:
        used = standin.used()
        why = f"its set-up uses {used}, which the others are past" if used else ""
        return self._course.unfit or why

    def has_finished(self, step: int) -> bool:
        """Wait until no rank has a step left; return False if another rank is lost meanwhile."""
        if self.is_live and not self._member.has_finished(step):
            return False
        self.is_live, self._has_left = False, True
        return True

    def leave(self, step: int) -> None:
        """Report that the program has left its loop by itself."""
        if self.is_live:
            self.is_live, self._has_left = False, True
            self._member.leave(step)

    def _judge(self, step: int, error: BaseException) -> None:
        is_collective = leave.is_collective_error(error)
        why = f"{type(error).__name__}: {error}"
        if self._member.fault_owner(step, is_collective, why) is FaultOwner.OWN:
            self.is_live = False
            raise error

    # From one generation to the next.

    def _rejoin(self, begun: float, why: str) -> int:
        while True:
            self._leave()
            transfer, self._foreseen = self._foreseen, None
            if transfer is not None and why:
                self._member.refuse(why)  # then it reports that as its position
                transfer = None
            if transfer is None or self._member.is_over:
                transfer = self._member.meet(lambda: self._position(why))
            taken = self._take_part(transfer)
            if taken is None:
                continue
            seconds = round(time.monotonic() - begun, 6)
            if self._member.is_restored(seconds, taken.taken):
                break
        self._report(transfer, seconds, taken.taken)
        self._threadlet.boundary.disturb(False)
        if self._member.is_over:  # announced just now
            self._threadlet.boundary.disturb(True)
        self._enter(StepPhase.STEP)
        self.is_live = True
        self._member.train(transfer.start)
        return transfer.start

    def _position(self, why: str) -> RankPosition:
        return RankPosition(self._applied, self._pages.steps(), why)

    def _leave(self) -> None:
        """Drop all that refers to the group, then the group."""
        self._backend = agreement.backend() or self._backend
        for model in self._course.things.models.values():
            model.drop()
        self._course.things.drop_gradients()
        group, self._group = self._group, None
        if standin.is_on():
            standin.leave()
            environment.variables().pop(standin.VARIABLE, None)
        elif group is not None:
            group.leave()
        self._threadlet.settle()

    def _take_part(self, transfer: Transfer) -> Taken | None:
        """Join the others and take what is given; None where that failed."""
        try:
            self._join(transfer)
            taken = self._taken(transfer)
            self._put(transfer, taken)
        except Exception as error:  # the weaver decides how to continue without it
            _release(error)
            if not self._member.is_over:
                sys.stderr.write(f"loom: cannot continue in generation {_of(transfer)}: {error}\n")
                self._member.refuse(f"{type(error).__name__}: {error}")
            return None
        return taken

    def _join(self, transfer: Transfer) -> None:
        seat, member = self._threadlet.identity, self._member
        limit = seat.hang.get("limit")
        timeout = float(limit) if isinstance(limit, int | float) and limit > 0 else _TIMEOUT
        where = seat.rank, seat.world_size, self._backend, timeout
        self._group = join(transfer.store, *where, is_over=lambda: member.is_over)
        if member.is_over:  # announced while it was made
            self._group.free()

    def _taken(self, transfer: Transfer) -> Taken:
        seat = self._threadlet.identity
        what = transfer.given, seat.rank, transfer.nodes, _folder(seat.page), _of(transfer)
        own = self._course.things.parameters() if self.is_new else ()
        return give_and_take(*what, self._course.common, self._private_of, own)

    def _private_of(self, step: int) -> State:
        """Return this rank's private state after a step, for a rank that has lost its own."""
        return self._pages.read(step) or self._course.private()

    def _put(self, transfer: Transfer, taken: Taken) -> None:
        """Load what was given, and become a member of the generation."""
        start, rank = transfer.start, self._threadlet.identity.rank
        own = {given.what: given.step for given in transfer.given if given.target == rank}
        private = taken.private
        step = own.get(What.PAGE, -1 if start == 0 else None)
        if step is not None:
            private = self._pages.read(step)
        if private is None and not (start == 0 and self.is_new):
            raise NotTaken(f"the page of step {start - 1} of rank {rank} is damaged")
        if taken.shared is not None:
            self._applied = None  # from here to the end the state is half of two
        self._course.rejoin(start, _of(transfer), taken.shared)
        self._applied = start
        for model in self._course.things.models.values():
            model.rebuild(sync=False)
        self._course.take_private(private)
        self._pages.drop_after(start - 1)
        self._pages.write(start - 1, self._course.private())
        environment.export({GENERATION_VARIABLE: str(_of(transfer))})  # for child processes
        self._threadlet.move_on(_of(transfer), transfer.store)

    def _report(self, transfer: Transfer, seconds: float, taken: int) -> None:
        facts: dict[str, Any] = {"step": transfer.start, "seconds": seconds, "taken": taken}
        self._threadlet.event("rejoined", facts)

    def _enter(self, phase: StepPhase) -> None:
        self._threadlet.page.enter(phase, time.monotonic_ns())

    def _has_page(self, step: int) -> bool:
        try:
            self._pages.write(step, self._course.private())
        except Exception as error:  # no room, a state that cannot be written: continue without
            sys.stderr.write(f"loom: no page of step {step}, a loss means a restart: {error}\n")
            return False
        return True

    # In the link's thread.

    def _generation_over(self, generation: int) -> None:
        """Interrupt the training thread where it waits in the old group."""
        if self._has_left:
            self._member.decline(generation, _LEFT)
            return
        self._threadlet.boundary.disturb(True)
        leave.free()


def opened(course: RecoverableRun, threadlet: Threadlet) -> RankRecovery | None:
    """Return a rank's live recovery; None where it has no agent."""
    seat, link = threadlet.identity, threadlet.open_membership()
    if link is None or not seat.page:
        return None
    return RankRecovery(course, threadlet, link, OwnPages(seat.own_folder, seat.start_count))


def _unfit(things: TrackedState, group: leave.DefaultGroup | None) -> str:
    """Return why a rank cannot be recovered live, if so."""
    if not agreement.together():
        return "it has no peers"
    if things.divided:
        return "each rank holds a part of the model"
    if things.foreign:
        return f"{' and '.join(things.versions)} ends a rank with its peers"
    if not things.models:
        return "no model is wrapped by run.wrap"
    if not things.has_optimizer:
        return "no optimizer is tracked by run.track"
    if group is None:
        return "its group was made in a way that is not known here"
    return "the program has made groups of its own" if leave.has_more_groups() else ""


def _release(error: BaseException | None) -> None:
    """Release all that an exception's frames hold: the group is among it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        before = error.__cause__ or error.__context__
        error.__traceback__ = error.__cause__ = error.__context__ = None
        error = before
    gc.collect(1)


def _of(transfer: Transfer) -> int:
    return transfer.head.generation


def _folder(page: str) -> Path:
    return Path(page).parent
