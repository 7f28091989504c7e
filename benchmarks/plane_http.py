"""How soon hostile specs are refused, and jobs taken in, by the plane's HTTP server.

A user's own plane (`loom up`), asked by plain HTTP over one kept connection. Times are taken around
each request, by whoever asks; every line of `tests/specs/hostile.jsonl` is sent in each round.
"""

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks import plane_submit, planes
from benchmarks.figure import CannotMeasure, Figure, Lab, once, series
from benchmarks.planes import Plane
from tests.specs.hostile import read_table

KINDS = {".json": "application/json", ".yaml": "application/yaml"}
ROUNDS = 4
OWNER = "admin"  # whose token it is
PACE, PACED = 100, 1000  # submissions a second, and how many


def figures(lab: Lab) -> list[Figure]:
    """Return the figures of the HTTP server; all are of one plane."""

    @once
    def seen() -> dict[str, list[float]]:
        with planes.up(lab) as running, plane_submit.busy(running), line(running) as caller:
            found = {"hostile": hostile(caller), "paced": paced(caller)}
            running.ask("quota", owner=OWNER, workers=0)  # none of them is to begin
            return found

    refused = series("POST /api/jobs, hostile", lambda: seen()["hostile"])
    taken = series(f"POST /api/jobs, {PACE} a second", lambda: seen()["paced"])
    return [
        Figure("hostile", "ms until a hostile spec is refused", refused),
        Figure("http-latency", f"ms until stored, {PACE} a second, over HTTP", taken),
    ]


class Line:
    """One connection to the server, with the admin's token."""

    def __init__(self, url: str, token: str) -> None:
        self._http = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        self._headers = {"Authorization": f"Bearer {token}"}

    def post(self, path: str, kind: str, body: bytes) -> tuple[int, float]:
        """Return the status, and the milliseconds that it took."""
        began = time.perf_counter()
        self._http.request("POST", path, body, {**self._headers, "Content-Type": kind})
        answer = self._http.getresponse()
        answer.read()
        return answer.status, (time.perf_counter() - began) * 1e3

    def close(self) -> None:
        self._http.close()


@contextmanager
def line(running: Plane) -> Iterator[Line]:
    """Give a connection to a plane's server."""
    url = str(running.facts["url"])
    if not url.startswith("http://"):
        raise CannotMeasure(f"the plane serves no HTTP: {running.facts.get('note') or url}")
    caller = Line(url, Path(running.facts["token_file"]).read_text().strip())
    try:
        yield caller
    finally:
        caller.close()


def hostile(caller: Line) -> list[float]:
    """Return how long each refusal took."""
    found = []
    for spec in [*read_table().values()] * ROUNDS:
        status, took = caller.post("/api/jobs", KINDS[Path(spec.name).suffix], spec.content)
        if not 400 <= status < 500:
            raise CannotMeasure(f"{spec.name} was answered with {status}")
        found.append(took)
    return found


def paced(caller: Line) -> list[float]:
    """Return how long each of some submissions took that came at an even pace."""
    body = json.dumps(plane_submit.SPEC).encode()
    found, begin = [], time.perf_counter()
    for number in range(PACED):
        time.sleep(max(0.0, begin + number / PACE - time.perf_counter()))
        status, took = caller.post("/api/jobs", KINDS[".json"], body)
        if status != 201:
            raise CannotMeasure(f"a job was answered with {status}")
        found.append(took)
    return found
