"""A training that is followed by what its ranks write, not by what the plane says of it."""

import json
import os
from pathlib import Path

from ..harness.home import processes_of, until
from ..harness.plane_jobs import PATIENCE, loom
from . import ledgers

SCRIPT = str(Path(__file__).parent / "scripts" / "learn.py")
WORLD, EVERY, SAMPLES, EPOCHS = 3, 5, 96, 5
STEPS = EPOCHS * SAMPLES // (WORLD * 4)
LONG = 300.0


class Proof:
    """One training, followed by what its ranks write."""

    def __init__(
        self, model: str, out: Path, retries: int, pace: float = 0.0, later: float = 0.0
    ) -> None:
        """Start it, with so many seconds after each step of its first life, and of later ones."""
        out.mkdir()
        env = {"MODEL": model, "OUT": out, "EVERY": EVERY, "PACE": pace, "LATER_PACE": later}
        told = [word for name, value in env.items() for word in ("-e", f"{name}={value}")]
        words = ["--policy", "restart", "--max-retries", str(retries), SCRIPT]
        said = loom("run", "--json", "-n", str(WORLD), *told, *words)
        self.id: str = json.loads(said)["id"]
        self.out = out
        self.run = Path(os.environ["LOOM_HOME"], "runs", self.id)

    def ledgers(self) -> list[list[ledgers.Line]]:
        return [ledgers.read(self.out, rank) for rank in range(WORLD)]

    def chains(self) -> list[dict[int, str]]:
        return [ledgers.chain(lines) for lines in self.ledgers()]

    def step(self) -> int:
        """Return the last step that a rank has written down; -1 before the first."""
        return max((lines[-1].step for lines in self.ledgers() if lines), default=-1)

    def reached(self) -> int:
        """Return the furthest step that a rank has ever written down."""
        return max(line.step for lines in self.ledgers() for line in lines)

    def ranks(self) -> list[int]:
        """Return the processes of the ranks, by the record that their launch writes."""
        record = json.loads((self.run / "status.json").read_bytes())
        return [rank["process"]["pid"] for rank in record["ranks"] if rank["state"] == "RUNNING"]

    def committed(self) -> list[int]:
        """Return the steps of the checkpoints that lie there with a manifest."""
        found = self.run.glob("checkpoints/ckpt_step_*/manifest.json")
        names = [path.parent.name for path in found]
        return sorted(int(name.removeprefix("ckpt_step_")) for name in names if "." not in name)

    def state(self) -> str:
        return str(json.loads((self.run / "status.json").read_bytes())["state"])

    def ends(self) -> None:
        until(lambda: self.state() in ("SUCCEEDED", "FAILED", "CANCELLED"), LONG)
        assert self.state() == "SUCCEEDED", loom("logs", self.id)[-3000:]
        until(lambda: not processes_of(self.id), PATIENCE)
