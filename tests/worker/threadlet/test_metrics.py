"""What `run.log` notes, at which step, and what it says of what it does not keep."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from torchloom.bus.codec import decode, encode
from torchloom.messages.plane import Metrics
from torchloom.worker.run.run import Run
from torchloom.worker.run.steps import SIGNAL
from torchloom.worker.threadlet import metrics
from torchloom.worker.threadlet.threadlet import Threadlet


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Leave the signal by which steps are provoked as it was: `run.steps` listens to it."""
    before = signal.getsignal(SIGNAL)
    yield
    signal.signal(SIGNAL, before)


class Written:
    """A run that tells no agent; what it noted, and what it wrote about it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.threadlet = Threadlet({})
        self.notes = self.threadlet.notes
        self.notes._write = self.lines.append
        self.run = Run(self.threadlet, "")

    def points(self) -> dict[str, list[tuple[int, Any]]]:
        """Return what would be sent, by name, in its order."""
        found: dict[str, list[tuple[int, Any]]] = {}
        for message in self.notes.collect():
            if isinstance(message, Metrics):
                for step, _, *cells in message.rows:
                    for name, value in zip(message.names, cells, strict=True):
                        found.setdefault(name, []).append((step, value))  # type: ignore[arg-type]
        return found


def test_without_steps_a_counter_goes_on_when_a_name_comes_again() -> None:
    written = Written()

    for i in range(3):
        written.run.log({"loss": i / 2})
        written.run.log(accuracy=i)
    written.run.log({"loss": 9.0}, step=10)
    written.run.log(loss=8.0)

    assert written.points() == {
        "loss": [(0, 0.0), (1, 0.5), (2, 1.0), (10, 9.0), (11, 8.0)],
        "accuracy": [(0, 0), (1, 1), (2, 2)],
    }
    assert written.lines == []


def test_within_steps_numbers_are_of_the_step_unless_another_is_given() -> None:
    written = Written()

    for step in written.run.steps(2):
        with step:
            step.log(loss=0.5)
            written.run.log(late=1.0, step=step.number - 5)
            written.run.log(far=2.0, step=1000)
            written.run.log(here=3.0)
    for i in range(3):
        written.run.log(final=i)

    assert written.points() == {
        "loss": [(0, 0.5), (1, 0.5)],
        "late": [(-5, 1.0), (-4, 1.0)],
        "far": [(1000, 2.0), (1000, 2.0)],
        "here": [(0, 3.0), (1, 3.0)],
        "final": [(2, 0), (3, 1), (4, 2)],
    }
    assert written.lines == []


def test_where_an_optimizer_counts_its_steps_are_kept_to_and_no_number_is_lost() -> None:
    written = Written()
    boundary = written.threadlet.boundary
    boundary.begin("attached")

    for step in range(2):
        boundary.reach(step, step)
        written.run.log(loss=0.5)
        written.run.log(norm=1.5, step=step * 100)
        written.run.log(accuracy=0.25)
    for i in range(3):
        written.run.log(evaluated=i)

    assert written.points() == {
        "loss": [(0, 0.5), (1, 0.5)],
        "norm": [(0, 1.5), (100, 1.5)],
        "accuracy": [(0, 0.25), (1, 0.25)],
        "evaluated": [(1, 0), (2, 1), (3, 2)],
    }


def test_what_is_no_number_is_dropped_alone_and_said_once() -> None:
    written = Written()

    for _ in range(3):
        written.run.log({"loss": 0.5, "text": "a", "many": [1, 2], 7: 1.0}, step=3)
    written.run.log(0.5)  # type: ignore[arg-type]
    written.run.log({"loss": 0.5}, step="four")  # type: ignore[arg-type]
    written.run.log({"loss": 0.5}, step=1 << 70)

    again = "it was logged again in the same step; `step=` keeps each"
    assert written.points() == {
        "loss": [(3, 0.5)] * 3,
        "text": [(3, None)] * 3,
        "many": [(3, None)] * 3,
        "7": [(3, 1.0)] * 3,
    }
    assert written.lines == [
        "loom: a float is not kept: log takes a mapping\n",
        "loom: 'loss' is not kept: 'four' is not a step\n",
        f"loom: 'loss' is not kept: '{1 << 70}' is not a step\n",
        "loom: 'text' is not kept: a str is not one number\n",
        "loom: 'many' is not kept: a list is not one number\n",
        f"loom: all but the last 'loss', 'text', 'many' of a step is not kept: {again}\n",
    ]


def test_numbers_that_cannot_travel_are_made_to_or_dropped_alone() -> None:
    written = Written()
    values = {"loss": 0.5, "huge": 10**30, "beyond": 10**400, "half\ud800": 1.0, "on": True}

    written.run.log(values)
    (made,) = written.notes.collect()
    assert isinstance(made, Metrics)
    with pytest.raises((OverflowError, ValueError)):
        encode(made)
    sent = decode(encode(written.notes.mend(made)), Metrics)

    assert sent.names == ("loss", "huge", "beyond", "half\\ud800", "on")
    assert sent.rows[0][2:] == (0.5, 1e30, None, 1.0, True)
    assert written.lines == [
        "loom: 'beyond' is not kept: it is larger than any number that can be stored\n"
    ]


def test_calls_that_come_faster_than_they_are_taken_are_counted_and_said() -> None:
    written = Written()

    for i in range(metrics.MOST + 3):
        written.run.log(loss=i)

    assert len(written.points()["loss"]) == metrics.MOST
    assert written.notes.lost == 3
    assert written.lines == [
        "loom: a part of the numbers is not kept: more than 65536 calls of log in half a second\n"
    ]


def test_a_run_that_is_finished_takes_no_more_numbers_and_says_so_once() -> None:
    written = Written()

    with written.run as run:
        run.log(loss=0.5)
    run.finish()
    run.log(loss=0.25)
    run.log(loss=0.125, step=7)

    assert written.points() == {"loss": [(0, 0.5)]}
    assert written.lines == [
        "loom: what is logged now is not kept: run.finish() was called; "
        "another process is another run\n"
    ]


def test_a_run_that_nobody_watches_has_no_page_and_shows_where_it_is() -> None:
    written = Written()
    run = written.run
    for step in run.steps(3):
        with step:
            pass

    run.tags = "one"  # type: ignore[assignment]  # a word alone is one tag
    run.tags += ("two", "one")
    run.notes = "as before"

    assert (run.url, run.tags, run.notes) == (None, ("one", "two"), "as before")
    assert repr(run) == f"<loom run {run.id}: rank 0 of 1, step 3>"
    with pytest.raises(ValueError, match="goal must be 'min' or 'max', not 'down'"):
        run.metric("rmse", goal="down")  # type: ignore[arg-type]
