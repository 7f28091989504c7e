"""A curve as plain columns: smoothed, thinned for a screen, never sampled at random."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """One metric of one rank: where, when and what, equally long.

    `replaced` has what earlier generations reported of steps that were repeated, a series for each.
    """

    name: str
    steps: tuple[int, ...]
    times: tuple[float, ...]
    values: tuple[float, ...]
    rank: int = 0
    run: str = ""
    generation: int | None = None
    replaced: "tuple[MetricSeries, ...]" = ()

    def __post_init__(self) -> None:
        if not len(self.steps) == len(self.times) == len(self.values):
            raise ValueError(f"the columns of {self.name} are not equally long")

    def __len__(self) -> int:
        return len(self.steps)

    @classmethod
    def of(
        cls, name: str, rows: Iterable[Sequence[float]], rank: int = 0, run: str = ""
    ) -> "MetricSeries":
        """Return a curve from rows of (step, unix seconds, value)."""
        whole = [tuple(row) for row in rows]
        steps, times, values = zip(*whole, strict=True) if whole else ((), (), ())
        return cls(name, tuple(map(int, steps)), tuple(times), tuple(values), rank, run)

    @classmethod
    def of_buckets(cls, buckets: Mapping[str, Any], ends: bool = False) -> "MetricSeries":
        """Return a curve from the plane's buckets: each by its least, greatest and last value.

        With `ends` each is its last value alone, as is fit for an average.
        """
        name, rank = buckets["name"], buckets["rank"]
        older = tuple(
            replace(cls.of(name, _rows(one, ends), rank), generation=one["generation"])
            for one in buckets.get("replaced") or ()
        )
        return replace(cls.of(name, _rows(buckets, ends), rank), replaced=older)

    def start(self) -> float:
        """Return the time of the first point, or of the first that was replaced."""
        return min(one.times[0] for one in (self, *self.replaced))

    def seconds(self, start: float | None = None) -> tuple[float, ...]:
        """Return when each point was: since a time, or from the start on."""
        begin = self.start() if start is None else start
        return tuple(time - begin for time in self.times)

    def smoothed(self, weight: float) -> "MetricSeries":
        """Return the curve as a moving average that forgets: 0 is the curve itself, 0.99 is flat.

        The start is not biased towards zero. What is not finite stays where it is and counts for
        nothing.
        """
        older = tuple(one.smoothed(weight) for one in self.replaced)
        return replace(self, values=tuple(_averages(self.values, weight)), replaced=older)


def _rows(buckets: Mapping[str, Any], ends: bool) -> Iterator[tuple[int, float, float]]:
    names = ("step_first", "step_last", "min", "max", "last", "time")
    for first, step, low, high, value, time in zip(*(buckets[n] for n in names), strict=True):
        if first < step and not ends and low <= high:  # not where nothing is a number
            yield first, time, low
            yield (first + step) // 2, time, high
        yield step, time, value


def thinned(series: MetricSeries, most: int) -> MetricSeries:
    """Return the curve with at most about so many points: first, least, greatest, last of each.

    Drawn as a line on a screen of that many dots it looks like the whole.
    """
    if len(series) <= most:
        return series
    kept: list[int] = []
    stretches = max(1, most // 4)
    for i in range(stretches):
        begin, end = len(series) * i // stretches, len(series) * (i + 1) // stretches
        inside = range(begin, end)
        finite = [k for k in inside if math.isfinite(series.values[k])] or list(inside)
        least = min(finite, key=lambda k: series.values[k])
        most_of = max(finite, key=lambda k: series.values[k])
        kept += sorted({begin, least, most_of, end - 1})
    return replace(
        series,
        steps=tuple(series.steps[k] for k in kept),
        times=tuple(series.times[k] for k in kept),
        values=tuple(series.values[k] for k in kept),
    )


def _averages(values: Sequence[float], weight: float) -> Iterator[float]:
    if not 0 <= weight < 1:
        raise ValueError("the weight of what came before is from 0 to less than 1")
    total, weights = 0.0, 0.0
    for value in values:
        if not math.isfinite(value):
            yield value
            continue
        total = weight * total + (1 - weight) * value
        weights = weight * weights + (1 - weight)
        yield total / weights
