"""What the dashboard's bench reads off a browser's trace."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.dashboard_trace import Task, Trace, Window, windows  # noqa: E402
from benchmarks.figure import CannotMeasure  # noqa: E402


def event(name: str, ts: float, place: tuple[int, int] = (1, 1), **more: Any) -> dict[str, Any]:
    return {"name": name, "ts": ts, "pid": place[0], "tid": place[1], "ph": "X", **more}


def traced(*events: dict[str, Any]) -> Trace:
    return Trace(json.dumps({"traceEvents": events}).encode(), "here")


def test_tasks_are_those_of_the_thread_that_set_the_mark() -> None:
    trace = traced(
        event("RunTask", 2e6, dur=3e4, tdur=2e4),
        event("RunTask", 1e6, dur=1e4, tdur=1e4),
        event("RunTask", 1e6, (1, 2), dur=9e6, tdur=9e6),
        event("RunTask", 1e6, (2, 1), dur=9e6, tdur=9e6),
        event("here", 5e5, ph="I"),
    )

    assert trace.mark == 0.5
    assert trace.tasks() == [Task(1.0, 0.01, 0.01), Task(2.0, 0.03, 0.02)]


def test_a_task_counts_in_the_window_in_which_it_began() -> None:
    tasks = [Task(1.0, 0.5, 0.25), Task(1.75, 0.5, 0.25), Task(3.5, 1.0, 1.0)]

    seen = windows(tasks, begin=1.0, length=1.0, count=2)

    assert seen == [Window(1.0, 0.5, 0.5, 0.25), Window(0.0, 0.0, 0.0, 0.0)]


def test_the_first_paint_is_that_of_the_last_navigation() -> None:
    trace = traced(
        event("navigationStart", 1e6, args={"data": {"navigationId": "a"}}),
        event("firstContentfulPaint", 2e6, args={"data": {"navigationId": "a"}}),
        event("navigationStart", 5e6, args={"data": {"navigationId": "b"}}),
        event("firstContentfulPaint", 5.25e6, args={"data": {"navigationId": "b"}}),
        event("here", 6e6, ph="I"),
    )

    assert trace.first_paint() == 0.25


def test_a_trace_without_the_page_or_without_a_paint_measures_nothing() -> None:
    with pytest.raises(CannotMeasure, match="no mark here"):
        traced(event("RunTask", 1.0))
    with pytest.raises(CannotMeasure, match="no first paint"):
        traced(event("here", 1.0)).first_paint()
    with pytest.raises(CannotMeasure, match="no tasks"):
        traced(event("here", 1.0)).tasks()
