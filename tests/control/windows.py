"""Compare times with an outage to the quiet times around them, on a machine that is never quiet.

A machine's pace drifts: others use it, it warms up. So every outage lies between two quiet windows
and is compared with their mean, and quiet windows are compared with each other the same way: what
they differ by is what the machine does by itself. CPU time says the same with less noise, for a
thread that waits for its turn does not use any.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Tick:
    """The end of one step, as its rank wrote it."""

    time: float  # of CLOCK_MONOTONIC
    thread: float  # seconds of CPU that the training thread has used so far
    process: float  # and all threads of the rank


@dataclass(frozen=True)
class Window:
    """What a step took in one stretch of time, in seconds."""

    steps: int
    wall: float  # the median
    slowest: float
    thread: float  # the median
    process: float  # the mean: what other threads do is not done in every step


MEASURES = ("wall", "thread", "process")


def window(ranks: Iterable[Sequence[Tick]], began: float, ended: float) -> Window:
    """Return what the steps of all ranks took that ended in this time."""
    pairs = [pair for ticks in ranks for pair in pairwise(ticks) if began <= pair[1].time < ended]
    walls = [b.time - a.time for a, b in pairs]
    return Window(
        len(pairs),
        statistics.median(walls),
        max(walls),
        statistics.median(b.thread - a.thread for a, b in pairs),
        statistics.fmean(b.process - a.process for a, b in pairs),
    )


def ratios(before: Window, during: Window, after: Window) -> dict[str, float]:
    """Return how much longer steps took than around it, by each measure."""
    return {
        name: getattr(during, name) / ((getattr(before, name) + getattr(after, name)) / 2)
        for name in MEASURES
    }


def verdict(quiet: Sequence[Window], outages: Sequence[Window]) -> dict[str, dict[str, float]]:
    """Return the median of all ratios by each measure: of outages, and of quiet times alone.

    `outages[i]` lies between `quiet[i]` and `quiet[i + 1]`.
    """
    told = [ratios(*one) for one in zip(quiet[:-1], outages, quiet[1:], strict=True)]
    alone = [ratios(*one) for one in zip(quiet[:-2], quiet[1:-1], quiet[2:], strict=True)]
    return {
        name: {
            "outage": statistics.median(one[name] for one in told),
            "quiet": statistics.median(one[name] for one in alone),
            "noise": statistics.median(abs(one[name] - 1.0) for one in alone),
        }
        for name in MEASURES
    }
