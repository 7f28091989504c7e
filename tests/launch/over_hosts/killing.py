"""A seeded killer of ranks, agents and keepers of a training over two hosts."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...harness.home import until
from ...harness.host_launches import Launches, parent_of

SCRIPT = Path(__file__).with_name("phases.py")
PHASES = ("import", "init", "first_step", "allreduce", "optimizer", "teardown")
RECURRING = ("allreduce", "optimizer")
HOSTS = ("n1", "n2")
RANKS = 4
VICTIMS = (
    *(f"rank {rank}" for rank in range(RANKS)),
    *(f"agent {host}" for host in HOSTS),
)
VICTIMS += tuple(f"keeper {host}" for host in HOSTS)
LINGER = 0.25  # seconds for which a rank stays in a phase
LATEST = 0.1  # seconds into a phase; a cold import takes longer by itself
LATEST_COLD_IMPORT = 0.5
LIMIT = 120.0  # seconds; a session in which less than this happens next is stuck


@dataclass(frozen=True)
class Kill:
    """Whom to kill, and when: so many seconds after a rank of its host said a phase."""

    seed: int
    victim: str
    phase: str
    delay: float
    late: int  # the rank for which all others wait wherever they meet

    @classmethod
    def drawn(cls, seed: int, warm: bool) -> "Kill":
        """Phases take turns; the rest is the seed's."""
        dice = random.Random(seed)
        victim, phase = dice.choice(VICTIMS), PHASES[seed % len(PHASES)]
        latest = LATEST_COLD_IMPORT if phase == "import" and not warm else LATEST
        kill = cls(seed, victim, phase, round(dice.random() * latest, 4), 0)
        others = [rank for rank in range(RANKS) if rank != kill.rank]
        return cls(seed, victim, phase, kill.delay, dice.choice(others))

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

    @property
    def costs_a_restart(self) -> bool:
        """An agent is replaced, and its ranks go on."""
        return self.kind != "agent"


class Said(NamedTuple):
    """A line that a rank has written."""

    attempt: int
    phase: str
    pid: int
    at: float


@dataclass
class Session:
    """One launch that is to survive some kills, with no restart more than it needs."""

    launches: Launches
    folder: Path
    env: dict[str, str]
    attempt: int = 0

    def run(self, kills: Sequence[Kill]) -> list[dict[str, Any]]:
        """Kill one after the other; return what came of those that hit."""
        self.start(sum(kill.costs_a_restart for kill in kills), kills[0].late)
        samples = []
        for kill, following in zip(kills, [*kills[1:], kills[-1]], strict=True):
            sample = self._carry_out(kill, following)
            if sample is None:
                break
            samples.append(sample)
        self.end()
        return [self._judged(sample) for sample in samples]

    def start(self, restarts: int, late: int) -> None:
        """Launch a training that may start again so often."""
        self.folder.mkdir()
        self._make_late(late)
        hosts = self.launches.hostfile(n1=2, n2=2)
        words: list[str | Path] = ["--hostfile", hosts, "--max-restarts", str(restarts), SCRIPT]
        env = {"PHASES": str(self.folder), "LINGER": str(LINGER), **self.env}
        self._launch = self.launches.launch("n1", *words, env=env)

    def end(self) -> None:
        """Let the training come to its end; fail unless all ranks did in the last attempt."""
        (self.folder / "enough").touch()
        out, err = self._launch.communicate(timeout=LIMIT)
        assert self._launch.returncode == 0, f"{out}\n{err}\n{self._told()}"
        ended = [self.said(rank)[-1][:2] for rank in range(RANKS)]
        assert ended == [(self.attempt, "done")] * RANKS, self._told()

    def _carry_out(self, kill: Kill, following: Kill) -> dict[str, Any] | None:
        """Kill; return who was hit doing what, or nothing when it was too late for that."""
        pid = self._aim(kill)
        if pid is None:
            return None
        self._make_late(following.late)  # it may be aimed at the very attempt that comes now
        attempt = self.attempt
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        if kill.costs_a_restart:
            self.attempt += 1
            self.until(lambda: self.has_said(kill.rank, "import"))
            if not self.has_said(kill.rank, "import"):  # it had ended when it was hit
                self.attempt = attempt
                return None
        else:
            self.until(lambda: self.launches.tree(kill.host).get("agent") not in (None, pid))
        during = [said for said in self.said(kill.rank) if said.at <= killed][-1].phase
        back = time.monotonic()
        return {
            **asdict(kill),
            "during": during,
            "attempt": attempt,
            "at": killed,
            "back": back,
        }

    def _aim(self, kill: Kill) -> int | None:
        """Return the test's number of a victim whose rank is in the phase, at the very instant."""
        if kill.phase == "teardown":
            (self.folder / f"enough-{self.attempt}").touch()
        while True:
            self.until(lambda: self._has_come_to(kill))
            pid = self.victim(kill) if self._is_in(kill) else None
            time.sleep(kill.delay)  # the instant itself, not a wait for something
            if self._is_in(kill):
                return pid
            if kill.phase not in RECURRING or self._launch.poll() is not None:
                return None

    def _has_come_to(self, kill: Kill) -> bool:
        """Tell whether the rank is in the phase; one that does not recur may be over by now."""
        if kill.phase in RECURRING:
            return self._is_in(kill)
        return self.has_said(kill.rank, kill.phase)

    def _is_in(self, kill: Kill) -> bool:
        said = self.said(kill.rank)
        return bool(said) and said[-1][:2] == (self.attempt, kill.phase)

    def victim(self, kill: Kill) -> int | None:
        """Return the test's number of whom to kill."""
        rank = self.launches.number_of(kill.host, self.said(kill.rank)[-1].pid)
        if rank is None or kill.kind == "rank":
            return rank
        if kill.kind == "keeper":
            return parent_of(rank)
        return self.launches.tree(kill.host).get("agent")

    def _judged(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Add how long it took: until another agent was there, or all ranks stepped again.

        Killed once more on its way there, a training steps again in a later attempt only.
        """
        at, attempt = sample.pop("at"), sample["attempt"]
        stepping, back = attempt, sample.pop("back")
        if not sample["victim"].startswith("agent"):
            stepping, back = min(
                (later, max(came)) for later, came in self._first_steps().items() if later > attempt
            )
        return {**sample, "stepping_in": stepping, "seconds": round(back - at, 3)}

    def _first_steps(self) -> dict[int, list[float]]:
        """Return when the ranks came to the first step of each attempt in which all did."""
        came: dict[int, list[float]] = {}
        for said in (said for rank in range(RANKS) for said in self.said(rank)):
            if said.phase == "first_step":
                came.setdefault(said.attempt, []).append(said.at)
        return {attempt: stamps for attempt, stamps in came.items() if len(stamps) == RANKS}

    def until(self, condition: Callable[[], object]) -> None:
        try:
            until(lambda: condition() or self._launch.poll() is not None, LIMIT)
        except AssertionError:
            raise AssertionError(f"stuck: {self._told()}") from None

    def _make_late(self, rank: int) -> None:
        partial = self.folder / "late.partial"
        partial.write_text(str(rank))
        partial.replace(self.folder / "late")

    def said(self, rank: int) -> list[Said]:
        try:
            lines = (self.folder / str(rank)).read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        words = (line.split() for line in lines if line.endswith("\n"))
        return [Said(int(attempt), phase, int(pid), float(at)) for attempt, phase, pid, at in words]

    def has_said(self, rank: int, phase: str) -> bool:
        return (self.attempt, phase) in (said[:2] for said in self.said(rank))

    def _told(self) -> dict[int, list[Said]]:
        return {rank: self.said(rank)[-3:] for rank in range(RANKS)}


def survive(
    launches: Launches,
    seeds: Iterable[int],
    size: int,
    env: dict[str, str],
    tell: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Run sessions until every seed's kill has hit; return a sample of each."""
    pending = [Kill.drawn(seed, env["LOOM_WARM"] == "1") for seed in seeds]
    samples: list[dict[str, Any]] = []
    for number in range(4 * len(pending)):
        if not pending:
            break
        folder = launches.folder / f"session-{number}-{pending[0].seed}"
        done = Session(launches, folder, env).run(pending[:size])
        for each in done:
            what = f"{each['victim']} killed during {each['during']}"
            tell(f"kill {each['seed']}: {what}, back after {each['seconds']:.2f} s")
        samples += done
        # a kill that came too late is tried again, as the first of its session
        pending = pending[len(done) :]
    assert not pending, f"never hit: {pending}"
    return samples
