"""A job is followed by one client while server, weaver and NATS are killed beneath it."""

import shutil
import time
from pathlib import Path

import pytest

from ..harness import metric_rows as metrics
from ..harness.home import until
from ..harness.http_door import LEARN, Listener, door_of_admin, listening, notes
from ..harness.plane_jobs import PATIENCE, Plane

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
WORLD = range(2)
PARTS = ("server", "weaver", "nats")
NAMES = ("loss", "mark")
QUIET = 1.0  # seconds in which a second copy of something would have come


def passes(listener: Listener, more: int = 5) -> None:
    """Come back when so many further steps of each rank were heard of."""
    goals = {rank: step + more for rank, step in newest(listener).items()}
    until(lambda: all(newest(listener)[rank] >= goal for rank, goal in goals.items()), PATIENCE)


def newest(listener: Listener) -> dict[int, int]:
    """Return the last step of each rank that was heard of."""
    return dict(listener.said("metric", "rank", "step"))


def printed(folder: Path) -> list[tuple[int, str]]:
    """Return what each rank has printed by its own notes."""
    lines = [(rank, f"rank {rank} begins") for rank in WORLD]
    for rank in WORLD:
        steps = [row[0] for row in notes(folder, rank)[1:]]
        lines += [(rank, f"rank {rank} is at {step}") for step in steps if step % 10 == 0]
    return sorted(lines)


def numbers(plane: Plane, database: str, column: str, job: str) -> list[int]:
    """Return the numbers of a job's events by a database file itself."""
    words = f"SELECT {column} FROM events WHERE job = ? ORDER BY {column}"
    with plane.database(database) as base:
        return [number for (number,) in base.execute(words, (job,))]


def said_by(listener: Listener, source: str) -> list[int]:
    """Return the numbers of the events of ranks, or of the weaver, that were heard."""
    found = [seq for who, seq in listener.said("event", "from", "seq") if who == source]
    if source == "weaver":
        found += [seq for (seq,) in listener.said("state", "seq")]
    return sorted(found)


def has_heard_all(listener: Listener, plane: Plane, job: str) -> bool:
    """Tell whether each event that is stored by now has been heard."""
    stored = {"rank": ("records", "id"), "weaver": ("state", "seq")}
    return all(
        set(numbers(plane, *where, job)) <= set(said_by(listener, source))
        for source, where in stored.items()
    )


def test_a_stream_misses_nothing_and_has_nothing_twice_whoever_is_killed(
    plane: Plane, folder: Path
) -> None:
    door, work = door_of_admin(), folder / "work"
    shutil.copy(LEARN, work)
    spec = {"name": "followed", "script": "learn.py", "env": {"OUT": str(work)}}
    job = door.submit({**spec, "resources": {"workers": len(WORLD)}}, work)

    with listening(door, job) as listener:
        until(lambda: listener.ranks() == set(WORLD), PATIENCE)
        for part in PARTS:
            plane.back(part, plane.kill(part))
            passes(listener)
        (work / "enough").touch()
        door.ends(job)
        points = sorted(
            (rank, step, loss, mark)
            for rank in WORLD
            for step, _, loss, mark in notes(work, rank)[1:]
        )
        until(lambda: len(listener.said("metric", "loss")) >= len(points), PATIENCE)
        until(lambda: len(listener.said("log", "message")) >= len(printed(work)), PATIENCE)
        until(lambda: has_heard_all(listener, plane, job), PATIENCE)
        until(lambda: time.monotonic() - listener.last > QUIET, PATIENCE)

    assert listener.visits > 1
    assert listener.said("metric", "rank", "step", *NAMES) == points
    stored = metrics.in_file(folder / "loom" / "plane" / "records.db")
    assert {place: point.value for place, point in stored.items() if place[1] in NAMES} == {
        (job, name, rank, "learn", step): value
        for rank, step, *both in points
        for name, value in zip(NAMES, both, strict=True)
    }
    lines = listener.said("log", "stream", "rank", "message")
    assert [line[1:] for line in lines if line[0] == "stdout"] == printed(work)
    assert said_by(listener, "rank") == numbers(plane, "records", "id", job)
    assert said_by(listener, "weaver") == numbers(plane, "state", "seq", job)
