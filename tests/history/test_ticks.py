"""The numbers along an axis are round, few and inside."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom.history.plot import clock, short, ticks


@pytest.mark.parametrize(
    ("low", "high", "most", "found"),
    [
        (0, 1000, 6, [0, 200, 400, 600, 800, 1000]),
        (0.05, 2.35, 6, [0.5, 1.0, 1.5, 2.0]),
        (-1, 1, 3, [-1, 0, 1]),
        (3, 3, 5, [3]),
    ],
)
def test_ticks_are_round(low: float, high: float, most: int, found: list[float]) -> None:
    assert ticks(low, high, most) == pytest.approx(found)


@given(st.floats(-1e9, 1e9), st.floats(1e-9, 1e9), st.integers(2, 20))
def test_ticks_are_few_inside_and_rising(low: float, width: float, most: int) -> None:
    high = low + width
    found = ticks(low, high, most)

    slack = (high - low) * 1e-6
    assert 1 <= len(found) <= max(2, most)
    assert all(low - slack <= value <= high + slack for value in found)
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.05, "0.05"),
        (1234, "1234"),
        (12_500, "12.5k"),
        (3e6, "3M"),
        (3e-5, "3e-05"),
        (-2.5, "-2.5"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (0.5, "0.5s"), (42, "42s"), (190, "3m10s"), (7500, "2h05m")]
)
def test_times_are_as_people_say_them(seconds: float, text: str) -> None:
    assert clock(seconds) == text
