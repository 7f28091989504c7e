"""How many jobs a plane takes in, and how soon each is stored: asked at the weaver's door.

A user's own plane (`loom up`) on a disk. An answer means that the job, its submission and its event
are in the database, synced. All slots are taken while it is measured, so that nothing is started.
Times are taken around each question, by whoever asks.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks import planes
from benchmarks.figure import CannotMeasure, Figure, Lab, once, series
from benchmarks.planes import Plane

CALLERS = 32
ROUNDS, EACH = 12, 640  # submissions of a round, from all callers together
PACE, PACED = 100, 1000  # a second, and how many
OWNER = "bench"
SPEC = {
    "name": "bench",
    "script": "train.py",
    "args": ["--epochs", "10", "--data", "/data/tokens"],
    "env": {"OMP_NUM_THREADS": "1"},
    "hyperparameters": {"lr": 0.001, "batch_size": 64},
    "recovery": {"policy": "restart", "attempts": 3},
}


def figures(lab: Lab) -> list[Figure]:
    """Return the figures of submissions; all are of one plane."""

    @once
    def seen() -> dict[str, list[float]]:
        with planes.up(lab) as running, busy(running):
            return {"paced": paced(running), "rates": rates(running)}

    many = series(f"submit, {CALLERS} callers", lambda: seen()["rates"])
    soon = series(f"submit, {PACE} a second", lambda: seen()["paced"])
    return [
        Figure("submissions", "durable submissions a second, at the door", many),
        Figure("submission-latency", f"ms until stored, {PACE} a second", soon),
    ]


@contextmanager
def busy(running: Plane) -> Iterator[None]:
    """Have one job keep every slot; whoever is behind it never starts."""
    slots = _slots(running)
    spec = {"name": "busy", "command": ["sleep", "600"], "resources": {"workers": slots}}
    job = running.ask("submit", spec={**spec, "priority": 1000}, owner="busy")["id"]
    try:
        yield
    finally:
        running.ask("quota", owner=OWNER, workers=0)
        running.ask("cancel", job=job)
        _until(lambda: running.ask("job", job=job)["state"] == "CANCELLED")


def rates(running: Plane) -> list[float]:
    """Return how many submissions a second were stored in each round."""
    callers = [running.caller() for _ in range(CALLERS)]
    found = []
    for _ in range(ROUNDS):
        count = EACH // CALLERS
        threads = [threading.Thread(target=_submit, args=(one, count)) for one in callers]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found.append(CALLERS * count / (time.perf_counter() - began))
    for one in callers:
        one.close()
    return found


def paced(running: Plane) -> list[float]:
    """Return how many milliseconds each of some submissions took that came at an even pace."""
    caller, took, begin = running.caller(), [], time.perf_counter()
    for number in range(PACED):
        time.sleep(max(0.0, begin + number / PACE - time.perf_counter()))
        began = time.perf_counter()
        _submit(caller, 1)
        took.append((time.perf_counter() - began) * 1e3)
    caller.close()
    return took


def _submit(caller: planes.Caller, count: int) -> None:
    for _ in range(count):
        said: dict[str, Any] = caller.ask("submit", spec=SPEC, owner=OWNER)
        if said["state"] != "QUEUED":
            raise CannotMeasure(f"a job is {said['state']}; it should wait")


def _slots(running: Plane) -> int:
    _until(lambda: running.ask("cluster")["nodes"])
    return int(running.ask("cluster")["nodes"][0]["cpus"])


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise CannotMeasure("the plane did not come to it within 60 s")
        time.sleep(0.02)
