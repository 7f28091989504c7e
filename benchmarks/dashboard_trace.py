"""What Chromium's trace says of a page: when it was first painted, and what its main thread did."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.figure import CannotMeasure

TASK = "RunTask"


@dataclass(frozen=True, slots=True)
class Task:
    """Something that the main thread did without a pause; all in seconds."""

    began: float
    took: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Window:
    """What the main thread did within a while."""

    busy: float  # share
    cpu: float  # share
    longest: float  # seconds
    longest_cpu: float


class Trace:
    """One trace, of the page that has set a mark in it."""

    def __init__(self, data: bytes, mark: str) -> None:
        found: list[dict[str, Any]] = json.loads(data)["traceEvents"]
        marks = [event for event in found if event["name"] == mark]
        if not marks:
            raise CannotMeasure(f"the trace has no mark {mark}")
        self._place = (marks[0]["pid"], marks[0]["tid"])
        self.mark = marks[0]["ts"] / 1e6
        self._events = [each for each in found if (each["pid"], each["tid"]) == self._place]

    def first_paint(self) -> float:
        """Return the seconds from the last navigation to the first paint that has content."""
        paints = [each for each in self._events if each["name"] == "firstContentfulPaint"]
        begins = [each for each in self._events if each["name"] == "navigationStart"]
        for paint in paints[-1:]:
            number = paint["args"]["data"]["navigationId"]
            for begin in begins:
                if begin["args"]["data"].get("navigationId") == number:
                    return float(paint["ts"] - begin["ts"]) / 1e6
        raise CannotMeasure("the trace has no first paint")

    def tasks(self) -> list[Task]:
        """Return what the main thread did, by time."""
        found = [each for each in self._events if each["name"] == TASK and each["ph"] == "X"]
        if not found:
            raise CannotMeasure("the trace has no tasks")
        rows = ((each["ts"], each.get("dur", 0), each.get("tdur", 0)) for each in found)
        return sorted(
            (Task(*(value / 1e6 for value in row)) for row in rows), key=lambda task: task.began
        )


def windows(tasks: Sequence[Task], begin: float, length: float, count: int) -> list[Window]:
    """Return what was done in each of several whiles; a task counts where it began."""
    return [window(tasks, begin + at * length, length) for at in range(count)]


def window(tasks: Sequence[Task], begin: float, length: float) -> Window:
    """Return what was done within a while."""
    own = [task for task in tasks if begin <= task.began < begin + length]
    return Window(
        busy=sum(task.took for task in own) / length,
        cpu=sum(task.cpu for task in own) / length,
        longest=max((task.took for task in own), default=0.0),
        longest_cpu=max((task.cpu for task in own), default=0.0),
    )
