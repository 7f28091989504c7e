"""Promises at the boundary, one interleaving at a time."""

import random
import threading
import time

import pytest

from torchloom.bus.progress_page import ProgressPage
from torchloom.worker.threadlet import boundary as module
from torchloom.worker.threadlet.boundary import PromisedCommand, StepBoundary


class FirstWins:
    """A store of one process, which notes who asked for an abort."""

    def __init__(self) -> None:
        self.entries: dict[str, int | None] = {}
        self.aborted: list[str] = []

    def abort(self, command: str) -> int | None:
        self.aborted.append(command)
        return self.entries.setdefault(command, None)


def made() -> tuple[StepBoundary, FirstWins]:
    judge = FirstWins()
    boundary = StepBoundary(ProgressPage.private(), judge, lambda order, step: None)
    assert boundary.reach(0, 0)
    boundary.begin("api")
    assert boundary.attend() == []
    return boundary, judge


def passed(boundary: StepBoundary, step: int) -> list[str]:
    """Pass to a step; return the commands that act there."""
    return [o.command for o in boundary.attend()] if boundary.reach(step, step) else []


def test_a_committed_command_acts_at_its_step_exactly_once() -> None:
    boundary, judge = made()
    order = boundary.promise("a", "knob", {})
    assert isinstance(order, PromisedCommand)

    boundary.settle("a", order.limit + 2)
    boundary.settle("a", order.limit + 1)  # the first word counts
    acted = {step: passed(boundary, step) for step in range(1, 12)}

    assert {step: what for step, what in acted.items() if what} == {order.limit + 2: ["a"]}
    assert judge.aborted == []


def test_a_rank_at_its_limit_obeys_what_the_store_has() -> None:
    boundary, judge = made()
    order = boundary.promise("a", "knob", {})
    assert isinstance(order, PromisedCommand)
    judge.entries["a"] = order.limit + 1  # written, but nobody has told this rank

    acted = {step: passed(boundary, step) for step in range(1, 6)}

    assert {step: what for step, what in acted.items() if what} == {order.limit + 1: ["a"]}
    assert judge.aborted == ["a"]


def test_an_aborted_command_never_acts_and_is_remembered() -> None:
    boundary, _ = made()
    boundary.promise("a", "knob", {})

    acted = [passed(boundary, step) for step in range(1, 6)]

    assert acted == [[]] * 5
    assert boundary.promise("a", "knob", {}) is None
    assert boundary.outcome("a") is None


def test_a_rank_waits_a_quarter_second_for_all_outcomes_together() -> None:
    took = []
    for _ in range(3):  # a loaded machine may take its time once
        boundary, judge = made()
        for name in ("a", "b", "c"):
            boundary.promise(name, "knob", {})

        began = time.monotonic()
        acted = [passed(boundary, step) for step in range(1, 4)]
        took.append(time.monotonic() - began)

        assert acted == [[]] * 3
        assert judge.aborted == ["a", "b", "c"]
    assert module.PATIENCE <= min(took) < 3 * module.PATIENCE


def test_quick_steps_promise_further_ahead() -> None:
    boundary, _ = made()
    for step in range(1, 40):
        boundary.reach(step, step)
    quick = boundary.promise("a", "knob", {})
    boundary._recent.extend([20_000_000] * 31)
    slow = boundary.promise("b", "knob", {})

    assert quick is not None
    assert slow is not None
    assert quick.ahead > 100
    assert slow.ahead == 1


def test_of_two_commands_for_one_step_the_first_acts_first() -> None:
    boundary, _ = made()
    for name in ("a", "b"):
        boundary.promise(name, "knob", {})
        boundary.settle(name, 5)
    boundary.promise("early", "knob", {})
    boundary.settle("early", 4)

    assert [passed(boundary, step) for step in (3, 4, 5)] == [[], ["early"], ["a", "b"]]


def test_a_resume_ends_a_pause_that_is_not_reached_yet() -> None:
    boundary, _ = made()
    for kind in ("pause", "resume"):
        boundary.promise(kind, kind, {})  # type: ignore[arg-type]
        boundary.settle(kind, 5)

    assert [passed(boundary, step) for step in range(1, 8)] == [[]] * 7


@pytest.mark.process
def test_no_step_begins_that_a_promise_has_excluded() -> None:
    """Many promises against a loop at full speed: each is kept, whatever the interleaving."""
    boundary, judge = made()
    acted: dict[str, int] = {}
    over = threading.Event()

    def train() -> None:
        step = 0
        while not over.is_set():
            step += 1
            for name in passed(boundary, step):
                acted[name] = step

    thread = threading.Thread(target=train)
    thread.start()
    chance, agreed = random.Random(3), {}
    for number in range(300):
        name = f"c{number}"
        order = boundary.promise(name, "knob", {})
        assert order is not None
        time.sleep(chance.random() * 1e-4)
        agreed[name] = judge.entries.setdefault(name, order.limit + chance.randrange(3))
        boundary.settle(name, agreed[name])
    expected = {name: step for name, step in agreed.items() if step is not None}
    deadline = time.monotonic() + 10
    while len(acted) < len(expected) and time.monotonic() < deadline:
        time.sleep(0.01)
    over.set()
    thread.join()

    assert acted == expected
    assert len(expected) > 250


def test_a_hair_less_than_a_step_that_fits_costs_no_whole_step() -> None:
    boundary, _ = made()
    boundary._recent.extend([4_980_000] * 31)

    order = boundary.promise("a", "knob", {})

    assert isinstance(order, PromisedCommand)
    assert order.ahead == 2  # steps of 4.98 ms: two of them are the ten milliseconds


def test_a_pause_is_left_when_members_change_and_gone_on_with_after_it() -> None:
    boundary, _ = made()
    order = boundary.promise("a", "pause", {})
    assert isinstance(order, PromisedCommand)
    boundary.settle("a", order.limit)
    assert boundary.reach(order.limit, order.limit)
    assert boundary.attend() == [order]
    threading.Timer(0.01, boundary.disturb, (True,)).start()

    boundary.pause(order)

    assert boundary.decided() == [order]
    assert boundary.attend() == []  # nothing acts until members have met again
    boundary.disturb(False)
    assert boundary.attend() == [order]


def test_what_was_promised_in_a_generation_ends_with_it_as_its_store_has_it() -> None:
    boundary, judge = made()
    for name in ("a", "b"):
        assert boundary.promise(name, "knob", {}) is not None
    judge.entries["b"] = 9

    boundary.settle_all()

    assert [boundary.outcome("a"), boundary.outcome("b")] == [None, 9]
    assert [order.command for order in boundary.decided()] == ["b"]
