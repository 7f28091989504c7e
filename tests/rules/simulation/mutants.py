"""Bugs that the simulation has to find, each a small change of one decision."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from torchloom.messages.membership import Restored
from torchloom.rules.membership import election, faults, live_recovery, seats
from torchloom.rules.membership.events import GenerationBegan, MemberReport, Tick
from torchloom.rules.membership.generation import GenerationPhase, StoreGeneration, end_process

from .laws import Laws


def lost_ack_ignored() -> Laws:
    """What had no answer is never said again."""

    def step(state: Any, event: Any) -> Any:
        after, effects = live_recovery.step(state, event)
        is_moved = state.record != after.record
        return after, effects if is_moved or not isinstance(event, Tick) else ()

    return Laws(step=step)


def forgotten_commit() -> Laws:
    """Members are told to train before it is stored that they do."""

    def step(state: Any, event: Any) -> Any:
        after, effects = live_recovery.step(state, event)
        if (state.record.phase, after.record.phase) == (
            GenerationPhase.MOVING,
            GenerationPhase.TRAINING,
        ):
            effects = tuple(e for e in effects if not isinstance(e, StoreGeneration))
        return after, effects

    return Laws(step=step)


def stale_epoch_obeyed() -> Laws:
    """An agent carries out what any weaver says."""

    def admit(fence: Any, epoch: int, generation: int) -> Any:
        return faults.admit(replace(fence, epoch=0), 0, generation)

    return Laws(admit=admit)


def wrong_page() -> Laws:
    """A page is looked for in the slot of the step after it."""
    return Laws(read_slot_of=lambda step: election.slot_of(step + 1))


def two_slots() -> Laws:
    """A rank that is one step ahead when it dies has overwritten the page that is needed."""
    return Laws(slot_of=lambda step: step % 2, read_slot_of=lambda step: step % 2)


def duplicate_ack_counted() -> Laws:
    """The second ack of one member stands for another's."""

    def step(state: Any, event: Any) -> Any:
        record = state.record
        is_ack = isinstance(event, MemberReport) and isinstance(event.message, Restored)
        is_ours = is_ack and event.generation == record.generation
        if (
            is_ours
            and record.phase is GenerationPhase.MOVING
            and event.who.rank in state.answers.done
        ):
            for seat in record.seats:
                if seat.rank not in state.answers.done:
                    event = replace(event, who=seat.who)
                    break
        return live_recovery.step(state, event)

    return Laws(step=step)


def survivor_killed() -> Laws:
    """A loss takes another member with it."""

    def step(state: Any, event: Any) -> Any:
        after, effects = live_recovery.step(state, event)
        told = [told for e in effects if isinstance(e, StoreGeneration) for told in e.changes]
        if any(isinstance(one, GenerationBegan) for one in told):
            spared = seats.survivors(after.record.seats)
            effects = (
                *effects,
                *(end_process(after.record, seat.who, "bug") for seat in spared[:1]),
            )
        return after, effects

    return Laws(step=step)


def _commits_without(who: Callable[[Any], bool]) -> Any:
    def absent(seats: Any, standings: Any) -> list[int]:
        return [s.rank for s in seats if who(s) and not (s.is_up and s.rank in standings)]

    return absent


# Decisions that the rule takes inside: replaced where it looks them up.
INSIDE: dict[str, tuple[Any, str, Any]] = {
    "two_generations": (live_recovery, "absent", _commits_without(lambda seat: seat.is_new)),
    "source_is_lowest": (
        election,
        "sources",
        lambda standings: sorted(r for r, s in standings.items() if s.applied is not None)[:1],
    ),
    "newcomer_counted": (live_recovery, "absent", _commits_without(lambda seat: not seat.is_new)),
    "no_escalation": (election, "overdue", lambda mode, waited, limits: None),
    "page_of_the_step": (election, "page_for", lambda start: start),
}
AROUND: dict[str, Callable[[], Laws]] = {
    "lost_ack_ignored": lost_ack_ignored,
    "forgotten_commit": forgotten_commit,
    "stale_epoch_obeyed": stale_epoch_obeyed,
    "wrong_page": wrong_page,
    "two_slots": two_slots,
    "duplicate_ack_counted": duplicate_ack_counted,
    "survivor_killed": survivor_killed,
}

BUGS = {  # within how many seeds each is found
    "lost_ack_ignored": 200,
    "two_generations": 100,
    "forgotten_commit": 50,
    "stale_epoch_obeyed": 3000,
    "source_is_lowest": 500,
    "page_of_the_step": 200,
    "wrong_page": 200,
    "two_slots": 3000,
    "newcomer_counted": 50,
    "duplicate_ack_counted": 200,
    "no_escalation": 500,
    "survivor_killed": 50,
}


@contextmanager
def planted(name: str) -> Iterator[Laws]:
    """Plant a bug; yield the laws of a world that has it."""
    if name in AROUND:
        yield AROUND[name]()
        return
    where, what, instead = INSIDE[name]
    with mock.patch.object(where, what, instead):
        yield Laws()
