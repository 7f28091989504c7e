"""The plane as programs elsewhere see it: HTTP by httpx, the stream by websockets, nothing else."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import connect

from .home import until
from .plane_jobs import PATIENCE, loom

WISH = "types=metric,event,state,log"
SCRIPTS = Path(__file__).parents[1] / "jobs" / "scripts"
LEARN, HELD = SCRIPTS / "learn.py", SCRIPTS / "held.py"
LOST = (ConnectionClosed, InvalidHandshake, EOFError, OSError)


@dataclass(frozen=True)
class Door:
    """Where a plane answers, and a token for it."""

    url: str
    token: str

    def ask(self, path: str, **query: Any) -> Any:
        """Return what a route answers, which must be good."""
        with self._client() as client:
            return self._good(client.get(path, params=query))

    def submit(self, spec: dict[str, Any], cwd: Path) -> str:
        """Submit a job that runs in a folder; return its id."""
        with self._client() as client:
            answer = client.post("/api/jobs", params={"cwd": str(cwd)}, json=spec)
        return str(self._good(answer)["id"])

    def ends(self, job: str) -> dict[str, Any]:
        """Return a job when it has ended and is summed up."""
        until(lambda: self.ask(f"/api/jobs/{job}")["summary"] is not None, PATIENCE)
        found: dict[str, Any] = self.ask(f"/api/jobs/{job}")
        return found

    def points(self, job: str, name: str) -> list[tuple[int, int, float]]:
        """Return every point of a metric by its route: rank, step and value."""
        found = self.ask(f"/api/jobs/{job}/metrics", name=name, raw=True, limit=100_000)
        assert found["next"] is None
        return sorted(
            (series["rank"], step, value)
            for series in found["series"]
            for step, value in zip(series["steps"], series["values"], strict=True)
        )

    def _client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE, trust_env=False)

    @staticmethod
    def _good(answer: httpx.Response) -> Any:
        assert answer.is_success, answer.text
        return answer.json()


class Listener(threading.Thread):
    """A client of a stream with nothing but its last cursor; it comes back whenever it is lost."""

    def __init__(self, door: Door, job: str) -> None:
        super().__init__()
        self._door, self._job = door, job
        self._is_over = threading.Event()
        self._cursor = "start"
        self.visits = 0
        self.last = time.monotonic()
        self.heard: list[dict[str, Any]] = []

    def run(self) -> None:
        while not self._is_over.is_set():
            with contextlib.suppress(*LOST):
                self._visit()
            self._is_over.wait(0.05)

    def _visit(self) -> None:
        url = self._door.url.replace("http", "ws", 1)
        url += f"/api/jobs/{self._job}/stream?{WISH}&after={self._cursor}"
        headers = {"Authorization": f"Bearer {self._door.token}"}
        with connect(url, additional_headers=headers, close_timeout=0.1, proxy=None) as socket:
            self.visits += 1
            while not self._is_over.is_set():
                with contextlib.suppress(TimeoutError):
                    said = json.loads(socket.recv(0.1))
                    self.last = time.monotonic()
                    self.heard.append(said)
                    self._cursor = said["cursor"]

    def stop(self) -> None:
        self._is_over.set()
        self.join(PATIENCE)

    def said(self, kind: str, *names: str) -> list[tuple[Any, ...]]:
        """Return some values of every message of a type that has them, in the values' order."""
        messages = [each for each in tuple(self.heard) if each["type"] == kind]
        found = [each for each in messages if set(names) <= each.keys()]
        return sorted(tuple(each[name] for name in names) for each in found)

    def ranks(self) -> set[int]:
        """Return whose loss was heard of."""
        return {rank for (rank, _) in self.said("metric", "rank", "loss")}


@contextlib.contextmanager
def listening(door: Door, job: str) -> Iterator[Listener]:
    """Follow a job's stream from its beginning, meanwhile."""
    one = Listener(door, job)
    one.start()
    try:
        yield one
    finally:
        one.stop()


def door_of_admin() -> Door:
    """Return the way into the plane of this test, which is up."""
    found = json.loads(loom("up", "--status", "--json"))
    return Door(found["url"], Path(found["token_file"]).read_text().strip())


def notes(folder: Path, rank: int) -> list[Any]:
    """Return what a rank wrote down: who it is, then its steps."""
    path = folder / f"rank-{rank}"
    whole = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in whole.split(b"\n")[:-1]]
