"""Steps and sections hold back what the run says, and batches come again where they are to."""

from typing import Any

import pytest

from torchloom.worker.run.steps import NONE, Dealing, Section, Step


class Holds:
    """A run that holds exceptions back, or not."""

    def __init__(self, is_live: bool) -> None:
        self.applied = 0
        self.held: list[BaseException | None] = []
        self._is_live = is_live

    def add(self, step: int, values: dict[str, Any], /) -> None:
        raise AssertionError

    def hold_back(self, error: BaseException | None) -> bool:
        self.held.append(error)
        return self._is_live


def test_a_step_that_is_done_is_applied() -> None:
    run = Holds(is_live=True)
    step = Step(run, 7, 0, None)

    with step:
        assert not step.is_done

    assert (step.is_done, run.applied, run.held) == (True, 8, [])


def test_an_exception_is_raised_at_once_where_nobody_can_be_replaced() -> None:
    run, error = Holds(is_live=False), ValueError("own")

    for block in (Step(run, 7, 0, None), Section(run, "eval")):
        with pytest.raises(ValueError, match="own"), block:
            raise error
        assert not block.is_done

    assert (run.applied, run.held) == (0, [error, error])


def test_an_exception_is_held_back_where_it_may_be_a_peers() -> None:
    run, error = Holds(is_live=True), ValueError("own")

    for block in (Step(run, 7, 0, None), Section(run, "eval")):
        with block:
            raise error
        assert not block.is_done

    assert (run.applied, run.held) == (0, [error, error])


def test_an_interrupted_step_gets_its_batch_again_and_those_that_others_did_are_passed() -> None:
    dealing = Dealing(iter((0, batch) for batch in "abcdef"))

    taken = [dealing.of(3), dealing.of(3)]
    dealing.go_to(3, None)
    taken.append(dealing.of(3))
    dealing.go_to(5, None)
    taken += [dealing.of(5), dealing.of(6)]
    dealing.go_to(6, iter([(1, "new")]))
    taken += [dealing.of(6), dealing.of(7)]

    assert taken == [(0, "a")] * 3 + [(0, "c"), (0, "d"), (1, "new"), NONE]
