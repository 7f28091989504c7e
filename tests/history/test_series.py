"""A curve keeps its extremes however few points are left, and smoothing does not move its start."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom.history.series import MetricSeries, thinned

numbers = st.floats(-1e6, 1e6, allow_nan=False) | st.just(math.nan)
curves = st.lists(numbers, max_size=300).map(
    lambda values: MetricSeries.of("loss", [(i, 10.0 * i, value) for i, value in enumerate(values)])
)


def test_rows_become_columns() -> None:
    curve = MetricSeries.of("loss", [(1, 10.0, 0.5), (2, 11.5, 0.4)], rank=3, run="a")

    assert curve == MetricSeries("loss", (1, 2), (10.0, 11.5), (0.5, 0.4), 3, "a")
    assert curve.seconds() == (0.0, 1.5)
    assert MetricSeries.of("loss", []) == MetricSeries("loss", (), (), ())


def test_buckets_become_their_least_greatest_and_last_value() -> None:
    told = {
        "name": "loss",
        "rank": 1,
        "step_first": [0, 1, 5],
        "step_last": [0, 4, 8],
        "min": [2.0, 0.5, math.nan],
        "max": [2.0, 3.0, math.nan],
        "last": [2.0, 1.0, math.nan],
        "time": [10.0, 11.0, 12.0],
        "count": [1, 4, 4],
        "nans": [0, 0, 4],
    }

    whole, ends = MetricSeries.of_buckets(told), MetricSeries.of_buckets(told, ends=True)

    assert (whole.steps, whole.values[:-1]) == ((0, 1, 2, 4, 8), (2.0, 0.5, 3.0, 1.0))
    assert (ends.steps, ends.times, ends.rank) == ((0, 4, 8), (10.0, 11.0, 12.0), 1)
    assert ends.values[:-1] == (2.0, 1.0)


def test_columns_that_are_not_equally_long_are_refused() -> None:
    with pytest.raises(ValueError, match="not equally long"):
        MetricSeries("loss", (1, 2), (1.0,), (0.5, 0.4))


def test_a_smoothed_curve_begins_where_the_curve_does_and_forgets_slowly() -> None:
    curve = MetricSeries.of("loss", [(i, 0.0, value) for i, value in enumerate([4.0, 2.0, 2.0])])

    assert curve.smoothed(0.5).values == (4.0, 8 / 3, 16 / 7)
    assert curve.smoothed(0.0) == curve


def test_what_is_no_number_stays_and_counts_for_nothing_when_smoothed() -> None:
    curve = MetricSeries.of("loss", [(0, 0.0, 1.0), (1, 0.0, math.nan), (2, 0.0, 1.0)])

    first, second, third = curve.smoothed(0.9).values

    assert (first, third) == pytest.approx((1.0, 1.0))
    assert math.isnan(second)


@pytest.mark.parametrize("weight", [1.0, -0.1, math.nan])
def test_a_weight_that_forgets_nothing_or_less_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="from 0 to less than 1"):
        MetricSeries.of("loss", [(0, 0.0, 1.0)]).smoothed(weight)


@given(curves, st.integers(4, 60))
def test_a_thinned_curve_has_points_of_the_curve_alone_with_its_ends_and_extremes(
    curve: MetricSeries, most: int
) -> None:
    thin = thinned(curve, most)

    whole = set(zip(curve.steps, curve.times, map(repr, curve.values), strict=True))
    finite = [value for value in curve.values if math.isfinite(value)]
    assert set(zip(thin.steps, thin.times, map(repr, thin.values), strict=True)) <= whole
    assert len(thin) <= max(most, 4)
    assert list(thin.steps) == sorted(set(thin.steps))
    if len(curve):
        assert (thin.steps[0], thin.steps[-1]) == (curve.steps[0], curve.steps[-1])
    if finite:
        kept = [value for value in thin.values if math.isfinite(value)]
        assert (min(kept), max(kept)) == (min(finite), max(finite))
