"""A training that `loom chaos` strikes, judged by the checker and by what its ranks wrote."""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchloom.chaos.checker.case import case_of
from torchloom.chaos.checker.judgement import Checker
from torchloom.chaos.report import report_of

from .home import processes_of, until
from .plane_jobs import LOOM, loom

SCRIPT = str(Path(__file__).parents[1] / "chaos" / "script.py")
LONG = 300.0  # seconds
LIMIT = "120s"
ENDS = ("SUCCEEDED", "FAILED", "CANCELLED")
UNSEEN = ("I2", "I9", "I10")  # by one who comes when all is over
Fault = Mapping[str, Any]
Book = dict[int, tuple[str, tuple[int, ...]]]  # what is behind each step of a rank


class Training:
    """One job of some ranks that goes slowly until it is let go."""

    def __init__(self, folder: Path, world: int, steps: int, pace: float = 0.0, **env: Any) -> None:
        self.folder, self.world, self.steps = folder, world, steps
        self.out, self.digests = folder / "out", folder / "ledger"
        for path in (self.out, self.digests):
            path.mkdir(parents=True)
        told = {"OUT": self.out, "LOOM_LEDGER": self.digests, "STEPS": steps}
        told |= {"PACE": pace * slowness(), **env}
        words = [word for name, value in told.items() for word in ("-e", f"{name}={value}")]
        words += ["--policy", "live", "--max-retries", "50"]
        self.id: str = json.loads(loom("run", "--json", "-n", str(world), *words, SCRIPT))["id"]
        self.run = Path(os.environ["LOOM_HOME"], "runs", self.id)

    # What it does.

    def is_live(self) -> bool:
        """Tell whether a loss would be recovered from without a restart."""
        path = self.run / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        told = map(json.loads, lines)
        return any(one["event"] == "watched" and one["is_live"] for one in told)

    def saved(self) -> int:
        """Return how many checkpoints lie there."""
        root = Path(self.record()["checkpoints"] or self.run / "checkpoints")
        return len(list(root.glob("ckpt_step_?????/manifest.json")))

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / "status.json").read_bytes())
        return found

    def state(self) -> str:
        return str(self.record()["state"])

    def ready(self) -> "Training":
        """Come back when it can be struck: it is watched, and has something saved."""
        until(lambda: self.state() in ENDS or (self.is_live() and self.saved() >= 2), LONG)
        assert self.state() not in ENDS, self.words()
        return self

    def ends(self) -> None:
        """Let it go to its end, which is a good one."""
        (self.out / "quick").touch()
        until(lambda: self.state() in ENDS, LONG)
        assert self.state() == "SUCCEEDED", self.words()
        until(lambda: not processes_of(self.id), LONG)

    def words(self) -> str:
        """Return what there is to say about a run that went wrong."""
        events = (self.run / "events.jsonl").read_text()[-2000:]
        struck = self.run / "chaos.jsonl"
        record = struck.read_text()[-2000:] if struck.exists() else ""
        return f"{self.id}: {events}\n{record}\n{loom('logs', self.id)[-2000:]}"

    # What is done to it.

    def strike(self, faults: Sequence[Fault], gap: float, against: Path) -> dict[str, Any]:
        """Strike one after the other, so many seconds apart; return the report of it."""
        path = self.folder / "plan.yaml"
        path.write_text(json.dumps(planned(faults, gap)))
        return self._strike("--plan", str(path), "--against", str(against))

    def strike_drawn(
        self, seed: int, mtbf: str, kinds: Sequence[str], faults: int, against: Path
    ) -> dict[str, Any]:
        """Strike by a plan that is drawn, a fifth of it close behind what came before."""
        words = ["--mtbf", mtbf, "--kinds", ",".join(kinds), "--seed", str(seed)]
        return self._strike(*words, "--faults", str(faults), "--against", str(against))

    def _strike(self, *words: str) -> dict[str, Any]:
        done = subprocess.run(
            [LOOM, "chaos", self.id, *words, "-y", "--json", "--limit", LIMIT],
            capture_output=True,
            text=True,
            timeout=2 * LONG,
            stdin=subprocess.DEVNULL,
        )
        assert done.stdout, f"{done.stderr}\n{self.words()}"
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def judged(self, against: Path) -> dict[str, Any]:
        """Judge it once more, when it is over."""
        env = {"LOOM_DATABASE": os.environ.get("LOOM_DATABASE", "")}
        return report_of(Checker(case_of(self.id, self.run, env, against)).judged())

    # What its ranks wrote, with nothing of ours between.

    def books(self) -> list[Book]:
        return [read(self.out / f"rank-{rank}") for rank in range(self.world)]


def read(path: Path) -> Book:
    """Return what a rank had behind each step; one that was done again must have been the same."""
    found: Book = {}
    whole = path.read_bytes() if path.exists() else b""
    for step, digest, samples in map(json.loads, whole.split(b"\n")[:-1]):
        before = found.setdefault(step, (digest, tuple(samples)))
        assert before == (digest, tuple(samples)), f"step {step} was another when it was repeated"
    return found


def same_books(mine: Sequence[Book], its: Sequence[Book]) -> None:
    """Check the ranks' own words: of each step that a rank did, and of each that any rank did."""
    for rank, (book, expected) in enumerate(zip(mine, its, strict=True)):
        other = sorted(step for step in book if book[step] != expected[step])
        assert not other, f"rank {rank}: not what an undisturbed run has at steps {other}"
    done = {step for book in mine for step in book}
    assert done == set(its[0]), "a step was left out"


def all_is_well(
    report: Mapping[str, Any], faults: Sequence[Fault], unknown: Sequence[str] = ()
) -> None:
    """Check a report: each fault of a plan was struck, and all that was is well."""
    struck = Counter(one["kind"] for one in report["faults"])
    assert struck == Counter(one["kind"] for one in faults), json.dumps(report, indent=1)
    is_kept(report, unknown)


def is_kept(report: Mapping[str, Any], unknown: Sequence[str] = ()) -> None:
    """Check a report: what was struck was recovered from and rightly named, nothing broke.

    All promises are known but those that are named.
    """
    text = json.dumps(report, indent=1)
    broken = [one for one in report["promises"] if one["answer"] == "broken"]
    assert broken == [], text
    totals = report["totals"]
    assert totals["recovered"] == totals["struck"] > 0, text
    assert (totals["named_wrongly"], totals["committed_steps_lost"]) == (0, 0), text
    found = [one["name"] for one in report["promises"] if one["answer"] == "unknown"]
    assert (found, report["ok"]) == (list(unknown), not unknown), text


def planned(faults: Sequence[Fault], gap: float) -> list[Fault]:
    """Return faults with so many seconds between them, and more where others use the machine."""
    gap *= slowness()
    return [{"at": round(0.5 + number * gap, 3), **fault} for number, fault in enumerate(faults)]


def slowness() -> float:
    """Return how many times as long things take here, at most, as on a machine of our own."""
    return min(4.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1) / 1.5))
