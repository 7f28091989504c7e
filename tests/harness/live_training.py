"""A training that is hurt while it runs, judged by what its ranks wrote and by /proc."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import step_records as ledgers
from .home import processes_of, until
from .plane_jobs import PATIENCE, loom

SCRIPT = str(Path(__file__).parents[1] / "live" / "script.py")
WORLD, EVERY, SAMPLES, EPOCHS = 3, 5, 96, 5
STEPS = EPOCHS * SAMPLES // (WORLD * 4)
LONG = 180.0
ENDS = ("SUCCEEDED", "FAILED", "CANCELLED")


class Proof:
    """One training of some ranks, which are hit where the list says."""

    def __init__(
        self,
        model: str,
        out: Path,
        hits: Sequence[str] = (),
        policy: str = "",
        retries: int = 2,
        pace: float = 0.02,
        watched: bool = True,
        **env: object,
    ) -> None:
        out.mkdir()
        told = {"MODEL": model, "OUT": out, "EVERY": EVERY, "PACE": pace, "HIT": "+".join(hits)}
        words = [word for name, value in (told | env).items() for word in ("-e", f"{name}={value}")]
        words += ["--policy", policy] if policy else []
        words += ["--max-retries", str(retries)]
        self.id: str = json.loads(loom("run", "--json", "-n", str(WORLD), *words, SCRIPT))["id"]
        self.hits = list(hits)
        self.out = out
        self.run = Path(os.environ["LOOM_HOME"], "runs", self.id)
        self._go(watched and not policy and bool(hits))

    def _go(self, watched: bool) -> None:
        """Let the ranks pass their gate, as soon as a loss would not mean a restart."""
        try:
            if watched:
                until(lambda: any(told["is_live"] for told in self.events("watched")), PATIENCE / 4)
        finally:
            (self.out / "go").touch()

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return what the launch has noted of a kind."""
        path = self.run / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [told for told in map(json.loads, lines) if told["event"] == kind]

    # What the ranks wrote.

    def ranks(self) -> list[list[ledgers.Life]]:
        return [ledgers.read(self.out, rank) for rank in range(WORLD)]

    def chains(self) -> list[ledgers.Chain]:
        return [ledgers.chain(lives) for lives in self.ranks()]

    def step(self) -> int:
        """Return the last step that all ranks have written down; -1 before the first."""
        every = (ledgers.lines_of(lives) for lives in self.ranks())
        return min(lines[-1].step if lines else -1 for lines in every)

    def was_hit(self, number: int = 0) -> bool:
        path = self.out / f"hit-{number}"
        return path.exists() and path.read_bytes() != b""

    def deaths(self) -> Counter[int]:
        """Return how often each rank was to be hit."""
        return Counter(int(hit.partition(":")[0]) for hit in self.hits)

    # What the launch wrote.

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / "status.json").read_bytes())
        return found

    def state(self) -> str:
        return str(self.record()["state"])

    def words(self) -> str:
        """Return what there is to say about a run that went wrong."""
        events = (self.run / "events.jsonl").read_text()[-9000:]
        return f"{self.id} {self.hits}: {events}\n{loom('logs', self.id)[-2500:]}"

    def over(self, state: str = "SUCCEEDED") -> None:
        """Wait for the end, which is to be this one; nothing of it may be left."""
        try:
            until(lambda: self.state() in ENDS, LONG)
        except AssertionError:
            raise AssertionError(f"hangs at step {self.step()}: {self.words()}") from None
        assert self.state() == state, self.words()
        until(lambda: not processes_of(self.id), PATIENCE)
        until(lambda: not list(Path("/dev/shm").glob(f"*{self.id}*")), PATIENCE)

    def holds(self, expected: Sequence[ledgers.Chain], least: int = 1) -> None:
        """Check a run to its end: nobody but the hit has died, and no bit is another."""
        self.over()
        try:
            self._hold(expected, least)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.words()}") from None

    def _again(self) -> int:
        """Return how often they may meet once more: a peer's end is felt before it is known."""
        return sum(":recovery:" in hit for hit in self.hits)

    def _hold(self, expected: Sequence[ledgers.Chain], least: int) -> None:
        ranks, deaths = self.ranks(), self.deaths()
        assert [number for number in range(len(self.hits)) if not self.was_hit(number)] == []
        ledgers.one_attempt(ranks)
        ledgers.same_steps(ranks, expected)
        ledgers.each_sample_once(ranks, expected, SAMPLES, EPOCHS)
        ledgers.survivors_survived(ranks, deaths)
        ledgers.generations_grew(ranks, min(least, deaths.total()), deaths.total() + self._again())
        ledgers.nothing_lost(ranks)
