"""A job over hosts that the plane of one of them watches, judged by the ranks' own files."""

import contextlib
import json
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from .home import until
from .host_launches import LOOM, Launches
from .metric_rows import in_file

PATIENCE = 90.0  # seconds; generous, for loaded machines
RELAY = "torchloom.launch.node_agent"

# Every step is written down by its rank: the lr that the optimizer used in it, and what was logged.
TRAIN = """
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torchloom.worker.run import run as loom

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(3)
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
used = []
optimizer.register_step_pre_hook(lambda one, *_: used.append(one.param_groups[0]["lr"]))
name = os.environ["REPORTS"] + f"/../rank-{rank}"
out = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
run = loom.init()
for step in run.steps(1_000_000):
    with step:
        loss = model(torch.randn(4, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step.log(loss=loss)
        os.write(out, json.dumps([step.number, used[-1], loss.item()]).encode() + b"\\n")
        time.sleep(0.01)
"""
ASK = """
import json, sys
from torchloom.client import plane
facts = json.loads(sys.argv[2])
print(json.dumps(plane.ask(sys.argv[1], None, **facts)))
"""
Row = tuple[int, float, float]  # step, lr, loss


@dataclass
class Watched:
    """One such job of two ranks, and the host whose plane is asked about it."""

    launches: Launches
    host: str = "n1"
    world: int = 2

    def variables(self) -> dict[str, str]:
        return self.launches.variables({"LOOM_PLANE": "1", "OMP_NUM_THREADS": "1"})

    def loom(self, *words: str) -> str:
        """Run a command line on the plane's host; return what it printed."""
        return self._run(*LOOM, *words)

    def ask(self, name: str, **facts: Any) -> Any:
        """Ask the plane itself about the job."""
        facts = {"job": self.launches.app_id, **facts}
        return json.loads(self._run(sys.executable, "-c", ASK, name, json.dumps(facts)))

    def _run(self, *argv: str) -> str:
        done = self.launches.cluster.run(self.host, argv, self.variables(), timeout=PATIENCE)
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, *before: str, flags: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
        """Launch the job from the plane's host; come back when the plane can change all ranks."""
        launch = self.begin(self.host, *before, *LOOM, "launch", *flags)
        self.ready()
        return launch

    def begin(self, host: str, *words: str) -> "subprocess.Popen[str]":
        """Start a command on a host that ends with the job's script."""
        script = str(self.launches.script(TRAIN))
        return self.launches.start(host, *words, script, env=self.variables())

    def ready(self) -> None:
        """Come back when the plane can change all ranks."""
        self.passes(1)
        until(lambda: self._offers("lr"), PATIENCE)

    def change(self, lr: float) -> int:
        """Change lr by the command line; return the step at which it acted everywhere."""
        said = json.loads(self.loom("set", self.launches.app_id, f"lr={lr}", "--json"))
        assert said["state"] == "applied", said
        self.passes(1)
        step: int = said["effective_step"]
        return step

    def stop(self) -> None:
        """Have all ranks stop before one and the same step, so that none has more to say."""
        assert self.ask("stop", wait=PATIENCE)["state"] == "applied"

    def shown(self) -> list[tuple[int, str, int]]:
        """Return number, node and step of each rank, as the command line shows them."""
        found = json.loads(self.loom("show", self.launches.app_id, "--json"))["ranks"]
        return [(one["rank"], one["node"], one["step"]) for one in found]

    def relay(self, host: str) -> int | None:
        """Return the test's number of the agent that the plane has on a host."""
        found = self.launches.processes(host).items()
        return next((pid for pid, words in found if RELAY in words), None)

    def reconnected(self) -> None:
        """Come back when the plane sees all ranks."""
        until(lambda: [one["state"] for one in self.ask("ranks")] == ["up"] * self.world, PATIENCE)

    # What the ranks wrote.

    def rows(self, rank: int) -> list[Row]:
        path = self.launches.folder / f"rank-{rank}"
        whole = path.read_bytes() if path.exists() else b""
        return [tuple(json.loads(line)) for line in whole.split(b"\n")[:-1]]

    def passes(self, more: int) -> None:
        """Come back when all ranks have done so many more steps."""
        goals = {rank: len(self.rows(rank)) + more for rank in range(self.world)}
        until(lambda: all(len(self.rows(rank)) >= goal for rank, goal in goals.items()), PATIENCE)

    def begins(self, lr: float) -> list[int | None]:
        """Return the first step of each rank that used this lr."""
        every = (self.rows(rank) for rank in range(self.world))
        return [next((step for step, used, _ in rows if used == lr), None) for rows in every]

    def logged(self) -> dict[tuple[int, int], float]:
        """Return every point of the loss, as the ranks wrote it themselves."""
        return {(r, step): loss for r in range(self.world) for step, _, loss in self.rows(r)}

    # What the plane has.

    def _offers(self, knob: str) -> bool:
        with contextlib.suppress(AssertionError):  # until the plane knows of the job
            found = {one["name"]: one for one in self.ask("knobs")}
            return knob in found and len(found[knob]["ranks"]) == self.world
        return False

    def stored(self) -> dict[tuple[int, int], float]:
        """Return every point of the loss, as the database has it."""
        found = in_file(self.launches.home / "plane" / "records.db")
        return {
            (rank, step): point.value
            for (job, name, rank, _, step), point in found.items()
            if job == self.launches.app_id and name == "loss"
        }

    def agents(self) -> set[tuple[str, str]]:
        """Return each agent's host, and how the weaver thinks it is, by the database."""
        return set(self._rows_of("state", "select host, state from agents"))

    def news_of(self, host: str) -> list[str]:
        """Return what happened to the agent of a host, in order, by the database."""
        words = (
            "select e.kind from events e join agents a on a.id = json_extract(e.facts, '$.agent')"
            " where a.host = ? order by e.seq"
        )
        return [kind for (kind,) in self._rows_of("state", words, host)]

    def _rows_of(self, name: str, words: str, *values: str) -> list[Any]:
        path = self.launches.home / "plane" / f"{name}.db"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
            return base.execute(words, values).fetchall()
