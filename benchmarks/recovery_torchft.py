"""torchft in the recovery bench: a replica is killed, and the others go on without it.

It is measured until the survivors have committed a step again, with 500 ms without a heartbeat as
the sign of a death; the replica itself is back seconds later.
"""

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.cli import version
from benchmarks.figure import CannotMeasure, Lab, Subject, series
from benchmarks.launch import LIMIT, RANKS, user

SAMPLES = 10
TRAINED = Path(__file__).with_name("recovery_trained.py")
LIGHTHOUSE = "127.0.0.1:29519"
WORDS = ["--min_replicas", "1", "--quorum_tick_ms", "100", "--heartbeat_timeout_ms", "500"]
LOST = 50_000_000  # ns after a kill in which steps end that it did not meet


def subject(lab: Lab) -> Subject:
    """Kill a replica; return when its survivors had all committed a step again.

    They train only while they are measured: who is measured next is to have the machine alone.
    """
    command = f"torchft_lighthouse {' '.join(WORDS)}; {RANKS} replicas of {TRAINED.name}"

    def take_all() -> list[float]:
        with Replicas.up(lab) as replicas:
            return [replicas.killed() for _ in range(SAMPLES)]

    return replace(series(command, take_all, "torchft"), version=version(lab, "torchft-nightly"))


@dataclass
class Replicas:
    """Four replicas of torchft, each a group of one rank; whoever is killed is started again."""

    lab: Lab
    folder: Path
    processes: "list[subprocess.Popen[bytes]]"

    @classmethod
    @contextlib.contextmanager
    def up(cls, lab: Lab) -> Iterator["Replicas"]:
        program = lab.peers / "torchft_lighthouse"
        if not program.exists():
            raise CannotMeasure(f"{program} is not there: torchft-nightly is not installed")
        folder = lab.scratch / "torchft"
        folder.mkdir()
        words = [str(program), "--bind", LIGHTHOUSE, "--join_timeout_ms", "2000", *WORDS]
        quiet = subprocess.DEVNULL
        found = cls(lab, folder, [])
        with subprocess.Popen(words, env=user(lab), stdout=quiet, stderr=quiet) as lighthouse:
            try:
                found.processes = [found.start(rank) for rank in range(RANKS)]
                yield found
            finally:
                for process in (*found.processes, lighthouse):
                    process.kill()
                    process.wait()

    def start(self, rank: int) -> "subprocess.Popen[bytes]":
        env = user(self.lab) | {"RANK": str(rank), "TORCHFT_LIGHTHOUSE": f"http://{LIGHTHOUSE}"}
        words = [str(self.lab.peers / "python"), str(TRAINED), str(self.folder), "torchft"]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(words, env=env, stdout=quiet, stderr=quiet)

    def killed(self) -> float:
        """Kill one when all train, and start it again when the others do."""
        self.until(lambda: all(self.after(rank, 0, 20) for rank in range(RANKS)))
        since = time.time_ns()
        self.until(lambda: all(self.after(rank, since, 5) for rank in range(RANKS)))
        at = time.time_ns()
        self.processes[-1].kill()
        self.processes[-1].wait()
        self.until(lambda: all(self.after(rank, at + LOST, 1) for rank in range(RANKS - 1)))
        took = max(self.after(rank, at + LOST, 1)[0] for rank in range(RANKS - 1)) - at
        self.processes[-1] = self.start(RANKS - 1)
        return took / 1e6

    def after(self, rank: int, since: int, count: int) -> list[int]:
        """Return the times of a rank's steps after a moment, if there are so many."""
        path = self.folder / str(rank)
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        times = [time_ns for time_ns in (int(line.split()[3]) for line in lines) if time_ns > since]
        return times if len(times) >= count else []

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT
        while not condition():
            if time.monotonic() > deadline:
                raise CannotMeasure("torchft's replicas got nowhere")
            time.sleep(0.005)
