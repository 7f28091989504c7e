"""Jobs whose scripts leave the loop to a trainer; judged by their own files and the database."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from torchloom.client import plane
from torchloom.errors import LoomError

from ...harness import metric_rows
from ...harness.home import processes_of, until
from ...harness.plane_jobs import LOOM, PATIENCE, Plane, loom

SCRIPTS = Path(__file__).parent / "scripts"
WORLD = 2
_OVER = ("COMPLETED", "FAILED", "CANCELLED")
Death = tuple[int, str, int, int]  # rank, place, step, micro-batch


@dataclass(frozen=True)
class Taken:
    """A step that a rank took: the lr of its optimizer, the lr that its weights show, its bits."""

    pid: int
    step: int
    lr: float
    moved: float
    digest: str


class TrainerJob:
    """A job of ranks that write what they see into a folder."""

    def __init__(
        self,
        script: str,
        out: Path,
        hold: int | None = None,
        retries: int = 0,
        world: int = WORLD,
        policy: str = "",
        **env: object,
    ) -> None:
        out.mkdir()
        self.out = out
        self.world = world
        if hold is not None:
            self.hold(hold)
        told = {"OUT": out, **env}
        words = [word for name, value in told.items() for word in ("-e", f"{name}={value}")]
        words += ["--max-retries", str(retries), "-cfg", f"grace={PATIENCE:.0f}"]
        words += ["--policy", policy] if policy else []
        words.append(str(SCRIPTS / script))
        self.id: str = json.loads(loom("run", "--json", "-n", str(world), *words))["id"]

    # What the ranks see, in their own files.

    def lines(self, what: str, rank: int = 0) -> list[Any]:
        """Return what a rank wrote; a line being written is left out."""
        path = self.out / f"{what}-{rank}"
        whole = path.read_bytes() if path.exists() else b""
        return [json.loads(line) for line in whole.split(b"\n")[:-1]]

    def taken(self, rank: int = 0) -> list[Taken]:
        return [Taken(*line) for line in self.lines("steps", rank)]

    def pid(self, rank: int) -> int:
        """Return the process of a rank's last life."""
        pid: int = self.lines("starts", rank)[-1]
        return pid

    def hold(self, step: int) -> None:
        """Have all ranks wait before a step."""
        (self.out / "hold").write_text(str(step))

    def held(self, step: int, world: int = WORLD) -> None:
        """Come back when all ranks have taken the step before and wait."""

        def is_there(rank: int) -> bool:
            taken = self.taken(rank)
            return bool(taken) and taken[-1].step == step - 1 and taken[-1].pid == self.pid(rank)

        until(lambda: all(map(is_there, range(world))), PATIENCE)

    def release(self) -> None:
        """Let the ranks go on."""
        (self.out / "hold").unlink(missing_ok=True)

    def kill(self, rank: int) -> int:
        """Kill a rank as the kernel does when memory is short; return its process."""
        pid = self.pid(rank)
        os.kill(pid, signal.SIGKILL)
        return pid

    # What the plane has of it.

    def ready(self, knob: str = "lr") -> None:
        """Come back when all ranks offer a knob."""

        def offered() -> bool:
            with contextlib.suppress(LoomError, KeyError):  # until the plane knows of both
                knobs = {one["name"]: one for one in plane.ask("knobs", job=self.id)}
                return len(knobs[knob]["ranks"]) == WORLD
            return False

        until(offered, PATIENCE)

    def state(self) -> str:
        state: str = plane.ask("job", job=self.id)["state"]
        return state

    def over(self) -> str:
        """Come back when the job has ended and nothing of it runs; return how."""
        until(lambda: self.state() in _OVER and not processes_of(self.id), PATIENCE)
        return self.state()

    def end(self) -> None:
        """End it by force, if it still runs."""
        if processes_of(self.id):
            loom("stop", "--now", self.id)

    def rows(self, base: Plane) -> dict[int, tuple[str, str, str]]:
        """Return state, trainer and path of the newest row of each step, by the database."""
        words = "SELECT step, state, trainer, path FROM checkpoints WHERE job = ?"
        with base.database("state") as state:
            found = state.execute(f"{words} ORDER BY generation", (self.id,)).fetchall()
        return {step: (phase, trainer, path) for step, phase, trainer, path in found}

    def events(self, base: Plane, kind: str, count: int = 0, rank: int = 0) -> list[dict[str, Any]]:
        """Return the facts of the events of a kind that a rank has sent, once there are so many.

        The last records of a process are stored soon after its end.
        """
        words = "SELECT facts FROM events WHERE job = ? AND kind = ? AND rank = ? ORDER BY id"

        def found() -> list[dict[str, Any]]:
            with base.database("records") as records:
                rows = records.execute(words, (self.id, kind, rank)).fetchall()
            return [json.loads(facts) for (facts,) in rows]

        until(lambda: len(found()) >= count, PATIENCE)
        return found()

    def kinds(self, base: Plane) -> dict[str, Any]:
        """Return the facts of what the weaver noted of the job, by kind."""
        with base.database("state") as state:
            words = "SELECT kind, facts FROM events WHERE job = ? ORDER BY seq"
            return {kind: json.loads(facts) for kind, facts in state.execute(words, (self.id,))}

    def let_die(self, base: Plane) -> None:
        """Let ranks that wait for it die: the weaver knows that all train."""
        until(lambda: "live" in self.kinds(base), PATIENCE)
        (self.out / "live").touch()

    def kept_all_but(self, deaths: list[Death], whole: "TrainerJob", last: int) -> None:
        """Check that only the dead were replaced, and the steps are those of an undisturbed job."""
        for rank in range(whole.world):
            lives = 1 + sum(dead == rank for dead, *_ in deaths)
            assert len(self.lines("starts", rank)) == lives, rank
            steps = {step: digest for _, step, digest in self.lines("steps", rank)}
            known = {step: digest for _, step, digest in whole.lines("steps", rank)}
            assert steps == {step: known[step] for step in steps}
            if lives == 1:  # it took each step once, in one process
                taken = [step for _, step, _ in self.lines("steps", rank)]
                assert taken == list(range(1, last + 1))
                assert {pid for pid, *_ in self.lines("steps", rank)} == set(
                    self.lines("starts", rank)
                )

    def curve(self, name: str) -> dict[int, float]:
        """Return the shown points of a number that the lowest rank has logged."""
        found = metric_rows.in_file(Path(os.environ["LOOM_HOME"], "plane", "records.db"))
        return {
            step: point.value
            for (job, own, rank, _, step), point in found.items()
            if (job, own, rank) == (self.id, name, 0)
        }


def refused(*words: str) -> str:
    """Run a command line that must be refused; return why."""
    done = subprocess.run(
        [LOOM, *words], capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    return done.stderr


def cases(short: Mapping[str, list[Death]], long: Mapping[str, list[Death]]) -> list[Any]:
    """Return the deaths to try, by name; the long ones in the long form only."""
    shorts = [pytest.param(deaths, id=name) for name, deaths in short.items()]
    soak = pytest.mark.soak
    return shorts + [pytest.param(deaths, id=name, marks=soak) for name, deaths in long.items()]


@contextlib.contextmanager
def undisturbed_jobs(start: Callable[[int], TrainerJob]) -> Iterator[Callable[[int], TrainerJob]]:
    """Give jobs in which no rank was killed, one for each number of ranks."""
    known: dict[int, TrainerJob] = {}

    def of(world: int) -> TrainerJob:
        if world not in known:
            one = known[world] = start(world)
            assert one.over() == "COMPLETED"
        return known[world]

    yield of
    for one in known.values():
        one.end()


@contextlib.contextmanager
def ending(job: TrainerJob) -> Iterator[TrainerJob]:
    """End a job by force if the block did not."""
    try:
        yield job
    finally:
        job.release()
        job.end()


@contextlib.contextmanager
def demanded(job: TrainerJob) -> Iterator[None]:
    """Demand a checkpoint by the command line; enter when it is agreed on, leave when it is saved.

    What the command line prints is in a file.
    """
    words = [LOOM, "checkpoint", job.id, "--json"]
    with (job.out / "demanded").open("w") as file, subprocess.Popen(words, stdout=file) as demand:
        until(lambda: [one for one in audit(job, "checkpoint") if one["effective_step"]], PATIENCE)
        yield
        assert demand.wait(PATIENCE) == 0


def audit(job: TrainerJob, kind: str) -> list[dict[str, Any]]:
    return [one for one in plane.ask("audit", job=job.id) if one["kind"] == kind]


def flip(path: Path) -> None:
    """Change one byte of a file, not its size nor its time."""
    before, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
