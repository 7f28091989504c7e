"""A plane of a bench's own: started as a user does, asked at its door, weighed from outside."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.cli import run
from benchmarks.figure import CannotMeasure, Lab
from benchmarks.launch import user

from torchloom import unix
from torchloom.client import plane


class Plane:
    """A running plane: NATS, weaver, node agent and server."""

    def __init__(self, door: Path, env: dict[str, str]) -> None:
        self.env = env
        self._door = door
        self.facts = self._ask(door.with_name("plane.sock"), "status", {})

    @property
    def keys(self) -> Path:
        """The folder of the keys that sign users."""
        return Path(self.facts["home"]) / "plane" / "keys"

    @property
    def server(self) -> tuple[str, int]:
        """The address of its NATS."""
        host, _, port = self.facts["nats"].rpartition("/")[2].partition(":")
        return host, int(port)

    def pid(self, part: str) -> int:
        """Return the process that is `nats`, `weaver`, `agent` or `server` now."""
        pid = self._ask(self._door.with_name("plane.sock"), "status", {})["parts"][part]["pid"]
        if pid is None:
            raise CannotMeasure(f"the plane's {part} is not up")
        return int(pid)

    def ask(self, name: str, **facts: Any) -> Any:
        """Ask the weaver."""
        return self._ask(self._door, name, facts)

    def rank(self, job: str) -> dict[str, str]:
        """Return what makes a process the only rank of a job that this node's agent hears."""
        return {"LOOM_AGENT": str(self._door.with_name("agent.sock")), "LOOM_JOB": job, "RANK": "0"}

    def caller(self) -> "Caller":
        """Return an open line to the weaver, so that a question costs no connection."""
        return Caller(self._door)

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[tuple[float, dict[str, Any]]]]:
        """Yield a list that grows by what the weaver tells watchers, with the time of hearing."""
        told: list[tuple[float, dict[str, Any]]] = []
        with plane.call(self._door, None) as channel:
            unix.send_message(channel, plane.question("watch", {}))
            threading.Thread(target=_hear_all, args=(channel, told), daemon=True).start()
            time.sleep(0.2)  # until it listens: what came before is not heard
            yield told
            with contextlib.suppress(OSError):
                channel.shutdown(2)

    @staticmethod
    def _ask(path: Path, name: str, facts: dict[str, Any]) -> Any:
        with plane.call(path, 120.0) as channel:
            return plane.answer(channel, plane.question(name, facts))


class Caller:
    """One connection to the weaver's door."""

    def __init__(self, door: Path) -> None:
        self._channel = plane.call(door, 60.0)

    def ask(self, name: str, **facts: Any) -> Any:
        return plane.answer(self._channel, plane.question(name, facts))

    def close(self) -> None:
        self._channel.close()


@contextlib.contextmanager
def up(lab: Lab) -> Iterator[Plane]:
    """Start a plane below the lab's folder; nothing of it is left behind."""
    env = user(lab)
    env = {
        name: value for name, value in env.items() if name not in ("LOOM_NATS", "torchLoom_ADDR")
    }
    run(lab.ours / "loom", "up", env=env)
    try:
        found = sorted((lab.scratch / "run").glob("torchloom/plane*/weaver.sock"))
        if not found:
            raise CannotMeasure("`loom up` left no door")
        yield Plane(found[0], env)
    finally:
        run(lab.ours / "loom", "down", env=env)


def cpu(pid: int, thread: int | None = None) -> float:
    """Return the seconds that a process, or one thread of it, has spent on a processor."""
    try:
        names = [str(thread)] if thread else os.listdir(f"/proc/{pid}/task")
        texts = [Path(f"/proc/{pid}/task/{name}/schedstat").read_text() for name in names]
    except OSError as error:
        raise CannotMeasure(f"the kernel does not tell the time of {error.filename}") from error
    return sum(int(text.split()[0]) for text in texts) / 1e9


def _hear_all(channel: Any, told: list[tuple[float, dict[str, Any]]]) -> None:
    with contextlib.suppress(OSError, ValueError):
        while (said := unix.receive_message(channel)) is not None:
            if "event" in said:
                told.append((time.monotonic(), said["event"]))
