"""A living plane and jobs under it, steered through its door and judged by the ranks' own files."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchloom.client import plane
from torchloom.errors import LoomError

from .home import processes_of, until

SCRIPTS = Path(__file__).parents[1] / "control" / "scripts"
LOOM = str(Path(sys.executable).with_name("loom"))
PATIENCE = 120.0  # seconds; generous, for loaded machines


def loom(*words: str) -> str:
    """Run one command line to its end, which must be a good one; return what it printed."""
    done = subprocess.run(
        [LOOM, *words], capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass(frozen=True)
class Row:
    """What one rank wrote of one step: its own clock, the values it used, its weights behind it."""

    step: int
    time: float
    used: dict[str, Any]
    digest: str


class Job:
    """A job of some ranks, started by `loom run`."""

    def __init__(self, script: str, world: int, out: Path, retries: int = 0, **env: object) -> None:
        out.mkdir()
        told = {"OUT": out, **env}
        words = [word for name, value in told.items() for word in ("-e", f"{name}={value}")]
        path = str(SCRIPTS / script)
        words += ["--max-retries", str(retries)]
        started = json.loads(loom("run", "--json", "-n", str(world), *words, path))
        self.id: str = started["id"]
        self.world = world
        self.out = out

    @classmethod
    def of(cls, name: str, world: int, out: Path) -> "Job":
        """Return a job that was started otherwise; its ranks write into this folder."""
        job = cls.__new__(cls)
        job.id, job.world, job.out = name, world, out
        return job

    # What the ranks say, in their own files.

    def lines(self, rank: int | str) -> list[Any]:
        """Return what a rank wrote, or a later life of it: a line being written is left out."""
        path = self.out / f"rank-{rank}"
        whole = path.read_bytes() if path.exists() else b""
        return [json.loads(line) for line in whole.split(b"\n")[:-1]]

    def rows(self, rank: int | str) -> list[Row]:
        return [Row(*line) for line in self.lines(rank)[1:]]

    def pid(self, rank: int) -> int:
        with (self.out / f"rank-{rank}").open() as file:
            pid: int = json.loads(file.readline())["pid"]
        return pid

    @contextlib.contextmanager
    def stopped(self, rank: int) -> Iterator[None]:
        """Hold a rank's process still for a while."""
        os.kill(self.pid(rank), signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid(rank), signal.SIGCONT)

    def step(self, rank: int = 0) -> int:
        """Return the last step that a rank has done; -1 before its first."""
        with contextlib.suppress(FileNotFoundError), (self.out / f"rank-{rank}").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1000))
            lines = file.read().split(b"\n")[:-1]
            last = json.loads(lines[-1]) if lines else None
            return last[0] if isinstance(last, list) else -1
        return -1

    def passes(self, more: int, ranks: range | None = None) -> None:
        """Come back when each of the ranks has done so many more steps."""
        goals = {rank: self.step(rank) + more for rank in ranks or range(self.world)}
        until(lambda: all(self.step(rank) >= goal for rank, goal in goals.items()), PATIENCE)

    # What is asked of the plane.

    def ready(self, knob: str = "lr") -> "Job":
        """Come back when all ranks have taken a step and offer a knob."""

        def offered() -> bool:
            with contextlib.suppress(LoomError, KeyError):  # until the plane knows of both
                knobs = {one["name"]: one for one in plane.ask("knobs", job=self.id)}
                return len(knobs[knob]["ranks"]) == self.world
            return False

        until(offered, PATIENCE)
        self.passes(1)
        return self

    def logged(self, metric: str) -> None:
        """Come back when the plane knows of a metric."""
        until(lambda: metric in plane.ask("metrics", job=self.id, limit=1)["names"], PATIENCE)

    def set(self, values: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """Change knobs; return the outcome."""
        outcome: dict[str, Any] = plane.ask(
            "set", None, job=self.id, values=dict(values), wait=PATIENCE, **more
        )
        return outcome

    def ranks(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = plane.ask("ranks", job=self.id)
        return found

    def audit(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = plane.ask("audit", job=self.id)
        return found

    def stop(self) -> int:
        """Have the ranks stop before one step; return it when they are gone."""
        outcome = plane.ask("stop", None, job=self.id, wait=PATIENCE)
        self.gone()
        step: int = outcome["effective_step"]
        return step

    def gone(self) -> None:
        """Come back when nothing of the job runs any more."""
        until(lambda: not processes_of(self.id), PATIENCE)

    def end(self) -> None:
        """End it by force, if it still runs."""
        if processes_of(self.id):
            loom("stop", "--now", self.id)


def values_of(command: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a command of the audit log gave to knobs."""
    payload = command["payload"]
    return payload.get("values") or {payload["name"]: payload["value"]}


def changes_of(commands: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Return what changed at which step, as the audit log has it; what came to nothing did not."""
    applied = [one for one in commands if one["kind"] == "knob" and one["state"] == "applied"]
    merged: dict[int, dict[str, Any]] = {}
    for one in sorted(applied, key=lambda one: (one["effective_step"], one["number"])):
        merged.setdefault(one["effective_step"], {}).update(values_of(one))
    return sorted(merged.items())


def used_by(
    first: Mapping[str, Any], changes: list[tuple[int, dict[str, Any]]], steps: int
) -> list[dict[str, Any]]:
    """Return what each of the first steps uses if exactly these changes act."""
    at, now, used = dict(changes), dict(first), []
    for step in range(steps):
        now.update(at.get(step, {}))
        used.append(dict(now))
    return used


def agree(job: Job, first: Mapping[str, Any]) -> None:
    """Stop a job; check that each rank used, in each step, what the audit log says."""
    last = job.stop()
    expected = used_by(first, changes_of(job.audit()), last)
    for rank in range(job.world):
        rows = job.rows(rank)
        assert [row.step for row in rows] == list(range(last))
        assert [row.used for row in rows] == expected


class Plane:
    """The plane of the tests' own user folder."""

    def pid(self, part: str) -> int:
        """Return which process is this part now: weaver, nats, agent."""
        found = plane.find()
        assert found is not None
        pid: int = found["parts"][part]["pid"] or 0
        return pid

    def kill(self, part: str, signum: int = signal.SIGKILL) -> int:
        pid = self.pid(part)
        os.kill(pid, signum)
        return pid

    def back(self, part: str, before: int) -> None:
        """Come back when another life of a part is up, and the weaver answers and is connected."""
        until(lambda: self.pid(part) not in (0, before), PATIENCE)
        until(self.is_whole, PATIENCE)

    def is_whole(self) -> bool:
        """Tell whether weaver, NATS and agent work together."""
        with contextlib.suppress(LoomError):
            found = self.status()
            return bool(found["connected"] and found["agents"])
        return False

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = plane.ask("status")
        return found

    @contextlib.contextmanager
    def database(self, name: str) -> Iterator[sqlite3.Connection]:
        """Read one of the plane's files with nothing of ours between."""
        path = Path(os.environ["LOOM_HOME"], "plane", f"{name}.db")
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
            yield base

    def command_state(self, command: str) -> tuple[str, int] | None:
        """Return where a command stands by the database: its state and the number of its offer."""
        with self.database("state") as base:
            found = base.execute("select state, offer from commands where id = ?", (command,))
            row: tuple[str, int] | None = found.fetchone()
            return row
