"""`loom checkpoint verify --replay` of a real job of two ranks, whose knobs changed on the way."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ...control.conftest import living
from ...harness.home import until
from ..conftest import LOOM
from ..test_json import problems

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
PATIENCE = 120.0
EVERY = 10
# What it does otherwise than in the job's own run is in a file: noise in step 24, or another loss.
PROGRAM = """
import os, pathlib, time
import torch, torch.distributed as dist
import torchloom as loom

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
run = loom.init(config={"scale": 1.0})
run.checkpointing(every_n_steps=10, keep_last=1000)
parts = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
model = run.wrap(torch.nn.Sequential(*parts))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
run.track(optimizer=optimizer)
data = torch.utils.data.TensorDataset(torch.randn(4000, 8))
mode = pathlib.Path("mode").read_text() if os.path.exists("mode") else ""
for step in run.steps(run.loader(data, batch_size=4), epochs=1):
    with step:
        loss = model(step.batch[0]).pow(2).mean() * run.config["scale"]
        if mode == "other":
            loss = loss * 1.5
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if mode == "noise" and step.number == 24:
            with torch.no_grad():
                model.module[3].bias += int.from_bytes(os.urandom(4))
    pathlib.Path("reached").write_text(str(step.number))
    time.sleep(0.02)
"""


class Trained:
    """A job that has ended, in a state folder of its own whose plane is still there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("home", "loom", "run", "work"):
            (folder / name).mkdir(mode=0o700)
        self.work = folder / "work"
        self.env = {**os.environ, "LOOM_PLANE": "1", "LOOM_WARM": "1", "OMP_NUM_THREADS": "1"}
        for variable, name in (("HOME", "home"), ("LOOM_HOME", "loom"), ("XDG_RUNTIME_DIR", "run")):
            self.env[variable] = str(folder / name)
        for variable in ("LOOM_JOB", "LOOM_AGENT_OF", "LOOMCONFIG", "TORCHXCONFIG"):
            self.env.pop(variable, None)
        (self.work / "train.py").write_text(PROGRAM)

    def train(self) -> None:
        """Train, change two knobs at one step on the way, and stop behind the next checkpoints."""
        self.done("up")
        (self.work / "warm.py").write_text("import torch")  # by now torch is imported for all
        self.done("run", "-d", "--wait", "warm.py")
        self.job = json.loads(self.done("run", "--json", "-n", "2", "train.py"))["id"]
        until(lambda: self.reached() > 2 * EVERY and self.knows("scale"), PATIENCE)
        said = self.done("set", self.job, "lr=0.01", "scale=3.0", "--json")
        self.changed = json.loads(said)["effective_step"]
        self.asked = self.loom("checkpoint", self.job, "--reason", "lunch")
        until(lambda: self.reached() > self.changed + 3 * EVERY, PATIENCE)
        self.done("stop", self.job)

    def knows(self, knob: str) -> bool:
        """Tell whether all ranks have told the plane of a knob."""
        done = self.loom("set", self.job, "--json")
        ranks = {one["name"]: one["ranks"] for one in json.loads(done.stdout or "[]")}
        return ranks.get(knob) == [0, 1]

    def done(self, *words: str) -> str:
        """Run a command that must succeed; return what it printed."""
        done = self.loom(*words)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    def reached(self) -> int:
        path = self.work / "reached"
        return int(path.read_text() or 0) if path.exists() else 0

    def loom(self, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [LOOM, *words],
            capture_output=True,
            text=True,
            env={**self.env, **env},
            cwd=self.work,
            timeout=PATIENCE,
        )

    def replay(self, *words: str, mode: str = "", **env: str) -> "tuple[int, str, str]":
        (self.work / "mode").write_text(mode)
        done = self.loom("checkpoint", "verify", self.job, *words, "--replay", **env)
        return done.returncode, done.stdout, done.stderr

    def runs(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "loom" / "runs").iterdir())

    def listed(self) -> list[tuple[str, str]]:
        return [(one["id"], one["state"]) for one in json.loads(self.done("ls", "--json"))]

    def saved(self) -> list[tuple[str, int]]:
        root = self.folder / "loom" / "runs" / self.job
        files = [path for path in root.rglob("*") if "checkpoints" in path.parts]
        return sorted((str(path), path.stat().st_mtime_ns) for path in files)

    def steps(self) -> list[int]:
        """Return the checkpoints by the names of their folders, oldest first."""
        root = self.folder / "loom" / "runs" / self.job / "checkpoints"
        return sorted(int(path.name.rpartition("_")[2]) for path in root.glob("ckpt_step_*"))

    def end(self) -> None:
        self.loom("stop", "--now", *[name for name in self.runs() if name[0] != "."])
        self.loom("down")

    def kill(self) -> None:
        """End what is left: the warm interpreter, and after a failure the rest."""
        for pid in living(self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        until(lambda: not living(self.folder), PATIENCE)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    job = Trained(tmp_path_factory.mktemp("replayed"))
    try:
        job.train()
        yield job
        job.end()
    finally:
        job.kill()


def test_a_stretch_with_changed_knobs_is_bit_exact_and_leaves_no_trace(trained: Trained) -> None:
    first = trained.changed // EVERY * EVERY
    saved, runs, listed = trained.saved(), trained.runs(), trained.listed()
    reached = [step for step in trained.steps() if first < step <= first + 20]

    code, out, err = trained.replay(str(first), "--steps", "20", "--json")

    told = json.loads(out)
    assert problems("checkpoint-verify", told) == []
    ids = told.pop("runs")
    assert (code, told) == (
        0,
        {
            "job": trained.job,
            "from": first,
            "until": first + 20,
            "ranks": 2,
            "exact": True,
            "difference": None,
            "compared_with": reached,
            "notes": [],
            "knobs": 1,
        },
    ), err
    assert {first + 10, first + 20} <= set(reached)
    assert [name.rpartition("-")[0] for name in ids] == [f"{trained.job}-replay"] * 2
    assert (trained.saved(), trained.runs()) == (saved, runs)
    assert trained.listed() == listed


def test_people_read_bit_exact_and_with_what_it_was_compared(trained: Trained) -> None:
    code, out, err = trained.replay("10", "--steps", "10")

    assert (code, out) == (
        0,
        "bit-exact: 10 steps from 10 agree in both replays and with the job's own checkpoint"
        " of step 20\n",
    )
    assert err == f"loom: repeating steps 10 to 19 of {trained.job} twice with 2 ranks\n"


def test_the_first_step_and_tensor_that_chance_has_changed_are_named(trained: Trained) -> None:
    code, out, _ = trained.replay("20", "--steps", "10", mode="noise")

    assert (code, out) == (
        1,
        "not bit-exact: before step 25, rank 0: model.3.bias differs between two replays\n",
    )


def test_another_program_agrees_with_itself_and_not_with_the_checkpoint(trained: Trained) -> None:
    code, out, _ = trained.replay("10", "--steps", "10", mode="other")

    assert (code, out) == (
        1,
        "not bit-exact: before step 20, rank 0: model.0.weight differs between the replay and the"
        " checkpoint of step 20\n",
    )


def test_a_program_that_fails_is_left_with_its_logs(trained: Trained) -> None:
    (trained.work / "train.py").write_text("raise SystemExit('cannot')")

    code, out, err = trained.replay("10")

    (trained.work / "train.py").write_text(PROGRAM)
    (left,) = [name for name in trained.runs() if "-replay-" in name]
    assert (code, out) == (1, "")
    assert "the program failed in the replay" in err
    assert f"`loom logs {left}` shows it" in err
    assert "cannot" in trained.loom("logs", left).stderr + trained.loom("logs", left).stdout
    assert trained.loom("rm", left).returncode == 0
    assert left not in trained.runs()


def test_without_the_plane_changed_knobs_cannot_be_repeated(
    trained: Trained, tmp_path: Path
) -> None:
    step = str(trained.changed // EVERY * EVERY)
    alone = {"XDG_RUNTIME_DIR": str(tmp_path), "LOOM_WARM": "0"}
    pointer = trained.folder / "loom" / "plane" / f"{os.uname().nodename}.lock"
    aside = pointer.rename(pointer.with_suffix(".aside"))  # else it is found from any shell
    try:
        code, out, err = trained.replay(step, "--steps", "20", **alone)
        before = trained.replay("10", "--json", **alone)
    finally:
        aside.rename(pointer)

    assert (code, out) == (2, "")
    assert "only the plane knows when; start it with `loom up`" in err
    assert (before[0], json.loads(before[1])["exact"]) == (0, True)


def test_each_reached_checkpoint_is_whole(trained: Trained) -> None:
    found: list[dict[str, Any]] = json.loads(
        trained.loom("checkpoint", "verify", trained.job, "--all", "--json").stdout
    )

    assert problems("checkpoint-verify", found) == []
    assert {one["state"] for one in found} == {"whole"}
    assert {one["step"] for one in found} >= {10, 20, 30, 40}


def test_who_asks_for_a_checkpoint_is_told_when_it_is_committed_and_where(
    trained: Trained,
) -> None:
    done = trained.asked

    assert (done.returncode, done.stderr) == (0, "")
    told = re.fullmatch(r"checkpoint of step (\d+) committed in .* m?s: (\S+)\n", done.stdout)
    assert told is not None, done.stdout
    manifest = json.loads(Path(told[2], "manifest.json").read_text())
    assert (manifest["step"], manifest["trigger"]) == (int(told[1]), "command")
    assert len(list(Path(told[2]).glob("worker_*.pt"))) == 2


def test_the_plane_removes_a_checkpoint_and_knows_who_and_why(trained: Trained) -> None:
    place = trained.folder / "loom" / "runs" / trained.job / "checkpoints" / "ckpt_step_00010"
    was_there = place.exists()

    done = trained.loom("checkpoint", "rm", trained.job, "10", "-y", "--reason", "too old")

    asks = "import json, sys; from torchloom.client import plane"
    asks += "; print(json.dumps(plane.ask('checkpoints', job=sys.argv[1])))"
    rows = subprocess.run(
        [sys.executable, "-c", asks, trained.job],
        capture_output=True,
        check=True,
        env=trained.env,
    )
    known = {row["step"]: (row["state"], row["reason"]) for row in json.loads(rows.stdout)}
    assert (done.returncode, done.stdout) == (0, "checkpoint of step 10 removed\n")
    assert (was_there, place.exists()) == (True, False)
    assert known[10] == ("removed", "too old")
