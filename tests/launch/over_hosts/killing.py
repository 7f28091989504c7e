"""A seeded killer of ranks, agents and keepers of a training over two hosts."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...living import until
from .launches import Launches, parent_of

SCRIPT = Path(__file__).with_name("phases.py")
PHASES = ("import", "init", "step", "allreduce", "optimizer", "teardown")
HOSTS = ("n1", "n2")
RANKS = 4
VICTIMS = (*(f"rank {rank}" for rank in range(RANKS)), *(f"agent {host}" for host in HOSTS))
VICTIMS += tuple(f"keeper {host}" for host in HOSTS)
LIMIT = 120.0  # seconds; a session in which less than this happens next is stuck


@dataclass(frozen=True)
class Kill:
    """Whom to kill, and when: so many seconds after a rank of its host said a phase."""

    seed: int
    victim: str
    phase: str
    delay: float

    @classmethod
    def drawn(cls, seed: int, warm: bool) -> "Kill":
        """Phases take turns; the rest is the seed's. Only a cold rank imports for long."""
        dice = random.Random(seed)
        phase = PHASES[seed % len(PHASES)]
        longest = 0.5 if phase == "import" and not warm else 0.02
        return cls(seed, dice.choice(VICTIMS), phase, round(dice.random() * longest, 4))

    @property
    def kind(self) -> str:
        return self.victim.partition(" ")[0]

    @property
    def rank(self) -> int:
        """The rank that is watched."""
        name = self.victim.partition(" ")[2]
        return HOSTS.index(name) * 2 if name in HOSTS else int(name)

    @property
    def host(self) -> str:
        return HOSTS[self.rank // 2]


@dataclass
class Session:
    """One launch that is to survive some kills, with no restart more than it needs."""

    launches: Launches
    folder: Path
    env: dict[str, str]

    def run(self, kills: Sequence[Kill]) -> list[dict[str, Any]]:
        """Kill one after the other; return what came of those that hit."""
        self.folder.mkdir()
        hosts = self.launches.hostfile(n1=2, n2=2)
        words = ["--hostfile", hosts, "--max-restarts", str(len(kills)), SCRIPT]
        env = {"PHASES": str(self.folder), **self.env}
        self._launch = self.launches.launch("n1", *words, env=env)
        self._attempt = 0
        samples = []
        for kill in kills:
            sample = self._carry_out(kill)
            if sample is None:  # the training was over before
                break
            samples.append(sample)
        (self.folder / "enough").touch()
        out, err = self._launch.communicate(timeout=LIMIT)
        assert self._launch.returncode == 0, f"{samples}\n{out}\n{err}\n{self._told()}"
        assert self._ended() == [(self._attempt, "done")] * RANKS, self._told()
        return samples

    def _carry_out(self, kill: Kill) -> dict[str, Any] | None:
        if kill.phase == "teardown":
            (self.folder / f"enough-{self._attempt}").touch()
        self._until(lambda: self._has_said(kill.rank, kill.phase))
        time.sleep(kill.delay)  # the instant itself, not a wait for something
        pid = self._pid(kill)
        if pid is None:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        began, during = time.monotonic(), self._said(kill.rank)[-1][1]
        if kill.kind == "agent":
            self._until(lambda: self.launches.tree(kill.host).get("agent") not in (None, pid))
        else:
            self._attempt += 1
            self._until(lambda: all(self._has_said(rank, "step") for rank in range(RANKS)))
        if self._launch.poll() is not None and kill.phase == "teardown":
            self._attempt = max(attempt for attempt, _ in self._ended())
            if kill.kind != "agent":
                return None
        facts = {"during": during, "attempt": self._attempt}
        return {**asdict(kill), **facts, "seconds": round(time.monotonic() - began, 3)}

    def _until(self, condition: Callable[[], object]) -> None:
        try:
            until(lambda: condition() or self._launch.poll() is not None, LIMIT)
        except AssertionError:
            raise AssertionError(f"stuck: {self._told()}") from None

    def _pid(self, kill: Kill) -> int | None:
        """Return the test's number of a victim that lives."""
        rank = self.launches.number_of(kill.host, self._said(kill.rank)[-1][2])
        if rank is None or kill.kind == "rank":
            return rank
        if kill.kind == "keeper":
            return parent_of(rank)
        return self.launches.tree(kill.host).get("agent")

    def _text(self, rank: int) -> str:
        try:
            return (self.folder / str(rank)).read_text()
        except FileNotFoundError:
            return ""

    def _said(self, rank: int) -> list[tuple[int, str, int]]:
        lines = self._text(rank).splitlines(keepends=True)[-20:]
        words = (line.split() for line in lines if line.endswith("\n"))
        return [(int(attempt), phase, int(pid)) for attempt, phase, pid in words]

    def _has_said(self, rank: int, phase: str) -> bool:
        return f"{self._attempt} {phase} " in self._text(rank)

    def _ended(self) -> list[tuple[int, str]]:
        return [said[-1][:2] if (said := self._said(rank)) else (-1, "") for rank in range(RANKS)]

    def _told(self) -> dict[int, list[tuple[int, str, int]]]:
        return {rank: self._said(rank)[-3:] for rank in range(RANKS)}


def survive(
    launches: Launches, seeds: Iterable[int], size: int, env: dict[str, str]
) -> list[dict[str, Any]]:
    """Run sessions until every seed's kill has hit; return a sample of each."""
    pending = [Kill.drawn(seed, env["LOOM_WARM"] == "1") for seed in seeds]
    samples: list[dict[str, Any]] = []
    for number in range(4 * len(pending)):
        if not pending:
            break
        folder = launches.folder / f"session-{number}-{pending[0].seed}"
        session = Session(launches, folder, env)
        done = session.run(pending[:size])
        samples += done
        # a kill that came too late is tried again, as the first of its session
        pending = pending[len(done) :]
    assert not pending, f"never hit: {pending}"
    return samples
