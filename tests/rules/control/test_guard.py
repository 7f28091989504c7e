"""A guard judges the steps after a change, and only those."""

import math
from collections.abc import Iterable

import pytest

from torchloom.rules.control.undo import Condition, Guard, condition_of, saw

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("loss>2.0", Condition("loss", ">", 2.0)),
        (" train/loss >= 1e-3 ", Condition("train/loss", ">=", 0.001)),
        ("accuracy<0.5x", Condition("accuracy", "<", 0.5, True)),
        ("loss<=-1", Condition("loss", "<=", -1.0)),
        ("loss>1.5x", Condition("loss", ">", 1.5, True)),
        ("loss is nan", Condition("loss")),
        ("loss is NaN", Condition("loss")),
        *((text, None) for text in ("", "loss", "loss>", ">2", "loss>a", "loss>nan", "loss==2")),
    ],
)
def test_a_condition_is_read_or_is_none(text: str, condition: Condition | None) -> None:
    assert condition_of(text) == condition


def guard(words: str, begin: int = 10, span: int = 5) -> Guard:
    condition = condition_of(words)
    assert condition is not None
    return Guard(words, condition, begin, span)


def after(guard: Guard, steps: Iterable[tuple[int, float | None]], is_first: bool = True) -> Guard:
    for step, value in steps:
        guard = saw(guard, is_first, step, value)
    return guard


def test_a_value_beyond_its_limit_trips_within_the_window_only() -> None:
    steps = [(9, 9.0), (10, 1.0), (11, 2.0)]

    assert after(guard("loss>2"), [*steps, (14, 3.0)]).why == "loss was 3 in step 14"
    assert after(guard("loss>2"), [*steps, (15, 3.0)]).verdict == "kept"
    assert after(guard("loss>2"), steps).verdict == "watching"


def test_a_relative_limit_is_relative_to_the_mean_of_the_last_values_before() -> None:
    before = [(step, float(step)) for step in range(-10, 10)]  # the last ten: 0 to 9

    calm = after(guard("loss>2x"), [*before, (10, 9.0)])
    tripped = after(calm, [(11, 9.1)])

    assert (calm.verdict, calm.base) == ("watching", 4.5)
    assert tripped.why == "loss was 9.1 in step 11, 4.5 before"
    assert after(guard("loss>2x"), [(10, 100.0)]).verdict == "watching"  # than what?


@pytest.mark.parametrize("words", ["loss is nan", "loss>2", "loss<-5x"])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_what_is_no_number_trips_every_guard_whichever_rank_has_it(
    words: str, value: float
) -> None:
    assert after(guard(words), [(12, value)], is_first=False).verdict == "tripped"
    assert after(guard(words), [(9, value)], is_first=False).verdict == "watching"


def test_numbers_of_other_ranks_are_not_compared() -> None:
    assert after(guard("loss>2"), [(12, 5.0), (20, 5.0)], is_first=False).verdict == "watching"


def test_a_window_that_is_over_says_how_much_was_seen() -> None:
    seen = after(guard("loss>2"), [(10, 1.0), (12, 1.0), (17, None)])

    assert (seen.verdict, seen.why) == ("kept", "2 values of loss in 5 steps")
    assert after(guard("loss>2"), [(17, None)]).why == "no value of loss in 5 steps"
    assert after(seen, [(18, NAN)]) == seen
