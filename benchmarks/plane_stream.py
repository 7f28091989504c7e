"""What it costs the server to tell two hundred clients twenty updates a second, and how soon.

A user's own plane (`loom up`), a rank whose five numbers come twenty times a second, and clients in
a process of their own, each on a WebSocket of its own. Processor time is the kernel's, of the whole
server process; messages are counted by the clients. A second in which a client had fewer or more
updates than were logged, but for one or two on the way, does not count as measured.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import planes
from benchmarks.figure import CannotMeasure, Figure, Lab, once, series
from benchmarks.planes import Plane, cpu

CLIENTS, RATE = 200, 20
LOOKS, LOOK = 12, 1.0  # windows, and seconds of each
SLACK = 3  # updates that may be on their way at either end of a window
JOB = "streamed"
HERE = Path(__file__).resolve().parent


def figures(lab: Lab) -> list[Figure]:
    """Return the figures of streams; all are of one run."""

    @once
    def seen() -> dict[str, list[float]]:
        with (
            planes.up(lab) as running,
            told(lab, running),
            listening(running) as clients,
        ):
            return observe(running.pid("server"), clients)

    share = series(f"{CLIENTS} clients, {RATE} updates a second", lambda: seen()["cpu"])
    late = series("from a rank to a client", lambda: seen()["late"])
    return [
        Figure("stream-cpu", "% of a core, of the server", share),
        Figure("stream-latency", "ms until a client has it", late),
    ]


def observe(server: int, clients: "subprocess.Popen[str]") -> dict[str, list[float]]:
    """Return processor time by window, and how old messages were when they were heard."""
    shares, ages = [], []
    before, _ = counts(clients)
    for _ in range(LOOKS):
        began, spent = time.perf_counter(), cpu(server)
        time.sleep(LOOK)
        took, spent = time.perf_counter() - began, cpu(server) - spent
        after, heard = counts(clients)
        had = [now - then for now, then in zip(after, before, strict=True)]
        if not all(abs(each - RATE * took) <= SLACK for each in had):
            raise CannotMeasure(f"clients had {min(had)} to {max(had)} updates in {took:.1f} s")
        shares.append(100 * spent / took)
        ages += heard
        before = after
    return {"cpu": shares, "late": ages}


def counts(clients: "subprocess.Popen[str]") -> tuple[list[int], list[float]]:
    """Return how many messages each client has had, and how old one client's last ones were."""
    assert clients.stdin is not None
    assert clients.stdout is not None
    clients.stdin.write("\n")
    clients.stdin.flush()
    line = clients.stdout.readline()
    if not line:
        raise CannotMeasure("the clients ended")
    found: tuple[list[int], list[float]] = json.loads(line)
    return found


@contextmanager
def told(lab: Lab, running: Plane) -> Iterator[None]:
    """Have a rank log; come back when the plane has heard of it."""
    host, port = running.server
    keys = lab.scratch / "home" / "plane" / "keys"
    words = [host, str(port), str(keys), JOB, str(RATE)]
    command = [sys.executable, "-m", "benchmarks.plane_ticker", *words]
    with subprocess.Popen(command, cwd=HERE.parent) as process:
        try:
            deadline = time.monotonic() + 60
            while not any(job["id"] == JOB for job in running.ask("jobs")):
                if time.monotonic() > deadline:
                    raise CannotMeasure("the plane did not hear of the rank")
                time.sleep(0.1)
            yield
        finally:
            process.kill()


@contextmanager
def listening(running: Plane) -> Iterator["subprocess.Popen[str]"]:
    """Run the clients; come back when all are connected and have heard something."""
    url = str(running.facts["url"])
    if not url.startswith("http://"):
        raise CannotMeasure(f"the plane serves no HTTP: {running.facts.get('note') or url}")
    host, port = url.rpartition("/")[2].split(":")
    token = Path(running.facts["token_file"]).read_text().strip()
    script = str(HERE / "plane_listeners.py")
    words = [host, port, token, f"/api/jobs/{JOB}/stream?types=metric", str(CLIENTS)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, script, *words], stdin=pipe, stdout=pipe, text=True
    ) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise CannotMeasure("the clients were not let in")
            time.sleep(2.0)  # what connecting costs is not of the figure
            yield process
        finally:
            process.kill()
