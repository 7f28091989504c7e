"""Ready-made training with JAX: torch's own numbers, restarts to the last bit, a live lr."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.client import plane as door
from torchloom.errors import LoomError
from torchloom.messages.plane import Event
from torchloom.worker.train.__main__ import main

from ...harness.home import processes_of, until
from ...harness.plane_jobs import PATIENCE, Plane, loom
from .conftest import Train
from .jobs import PLAIN, words
from .test_resume import lived

WORLD = 2
LONG = 240.0  # seconds, for loaded machines: each rank compiles
needs_jax = pytest.mark.needs("jax")
MLP = {"model": "mlp", "dataset": "synthetic:300"}
COSINE = {"accumulate": 3, "clip": 0.5, "schedule": "cosine", "optimizer": "adamw"}
SGD = {"optimizer": "sgd", "momentum": 0.9, "lr": 0.05, "weight_decay": 0.01}


def weights_of(folder: Path) -> dict[str, Any]:
    """Return the weights of the newest checkpoint."""
    from torchloom.checkpoint import open_storage
    from torchloom.worker.saving.inspection import read

    root = str(folder / "checkpoints")
    return read(root, open_storage(root, os.environ).committed()[0]).models()["model"]


@needs_jax
@pytest.mark.process
@pytest.mark.parametrize(
    ("world", "fields", "hyper"),
    [
        (WORLD, MLP, {"batch_size": 8, **COSINE, "weight_decay": 0.1}),
        (1, {"model": "transformer"}, {"batch_size": 5, "context": 16, "width": 32, **SGD}),
    ],
)
def test_it_ends_with_the_weights_that_torch_ends_with(
    train: Train, tmp_path: Path, world: int, fields: dict[str, Any], hyper: dict[str, Any]
) -> None:
    text = tmp_path / "song.txt"
    text.write_text("row row row your boat gently down the stream\n" * 15)
    job = {"dataset": f"text:{text}", **fields, "seed": 3, "checkpointing": {"enabled": True}}
    ended = {}

    for framework in ("pytorch", "jax"):
        place = tmp_path / framework
        place.mkdir()
        ended[framework] = ends(train, place, words(hyper, framework=framework, **job), world)

    mine, judge = ended["jax"], ended["pytorch"]
    assert mine[0].keys() == judge[0].keys()
    worst = max(float((mine[0][name] - judge[0][name]).abs().max()) for name in judge[0])
    assert worst < 2e-5, worst
    for name in ("loss", "eval/loss", "eval/accuracy", "lr"):
        assert mine[1][name] == pytest.approx(judge[1][name], rel=1e-3)


def ends(train: Train, folder: Path, told: str, world: int) -> tuple[dict[str, Any], Any]:
    """Return the weights and the numbers with which a training ends."""
    for rank in range(world):  # a training with a model of the tests' own writes these
        (folder / f"rank-{rank}").touch()
    _, agent = lived(train, folder, told, world, OUT=str(folder))
    (trained,) = (one.facts for one in agent.of(Event) if one.kind == "trained")
    return weights_of(folder), {name.replace("eval_", "eval/"): v for name, v in trained.items()}


@pytest.mark.needs("torch")
def test_what_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)

    code = main([], {"LOOM_JOB_SPEC": words(framework="jax")})

    assert code == 1
    assert capsys.readouterr().err == (
        "loom train: framework jax needs jax, which is not installed: "
        "run pip install 'torchloom[jax]'\n"
    )


class JaxJob:
    """A training with JAX under `loom run`; its ranks write digests of all that they train."""

    def __init__(self, folder: Path, hyper: dict[str, Any], **more: Any) -> None:
        folder.mkdir()
        self.digests = folder / "digests"
        spec = job_of(hyper, env={"LOOM_DIGESTS": str(self.digests)}, **more)
        path = folder / "job.json"
        path.write_text(json.dumps(spec))
        self.id: str = json.loads(loom("run", "--json", str(path)))["id"]

    def lines(self, rank: int) -> list[dict[str, Any]]:
        return lines_of(self.digests, rank)

    def passes(self, step: int) -> None:
        """Come back when all ranks have begun this step."""
        until(lambda: all(self.step(rank) >= step for rank in range(WORLD)), LONG)

    def step(self, rank: int) -> int:
        return max((line["step"] for line in self.lines(rank)), default=-1)

    def state(self) -> str:
        with contextlib.suppress(LoomError):
            return str(door.ask("job", job=self.id)["state"])
        return ""

    def pid(self, rank: int) -> int:
        """Return the process of a rank, by its own environment."""
        for pid in processes_of(self.id):
            with contextlib.suppress(OSError):
                found = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if f"RANK={rank}".encode() in found:
                    return pid
        raise LookupError(rank)


def job_of(hyper: dict[str, Any], **more: Any) -> dict[str, Any]:
    parallel = {"resources": {"workers": WORLD}, "seed": 3, "dataset": "synthetic:512"}
    return {**PLAIN, "framework": "jax", "hyperparameters": hyper, **parallel, **more}


def lines_of(folder: Path, rank: int) -> list[dict[str, Any]]:
    path = folder / f"rank_{rank}.jsonl"
    whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in whole]


@pytest.fixture
def jobs(plane: Plane) -> Iterator[list[JaxJob]]:
    """Hold the jobs of a test; whatever still runs is ended after it."""
    held: list[JaxJob] = []
    yield held
    for job in held:
        if processes_of(job.id):
            loom("stop", "--now", job.id)
    until(lambda: not any(processes_of(job.id) for job in held), PATIENCE)


@needs_jax
@pytest.mark.process
def test_a_killed_rank_does_not_change_a_bit(
    jobs: list[JaxJob], train: Train, tmp_path: Path
) -> None:
    hyper = {"batch_size": 8, "epochs": 3, "dropout": 0.1, "hidden": 16, "eval_fraction": 0}
    whole = tmp_path / "whole"
    ended = train(json.dumps(job_of(hyper)), WORLD, LOOM_DIGESTS=str(whole))
    assert [code for code, _ in ended] == [0] * WORLD, ended

    saves = {"enabled": True, "every_n_steps": 10}
    jobs.append(JaxJob(tmp_path / "job", hyper, checkpointing=saves))
    job = jobs[0]
    job.passes(25)
    os.kill(job.pid(1), signal.SIGKILL)
    until(lambda: job.state() == "COMPLETED", LONG)

    events = door.ask("events", job=job.id, limit=1000)["items"]
    restored = [each["facts"] for each in events if each["kind"] == "restored"]
    assert len(restored) == WORLD
    assert {(one["exact"], one["why"]) for one in restored} == {(True, "")}
    assert restored[0]["step"] >= 20
    for rank in range(WORLD):
        expected = {line["step"]: line["digest"] for line in lines_of(whole, rank)}
        found = job.lines(rank)
        assert {line["step"] for line in found} == expected.keys()
        assert len(found) > len(expected)  # some steps were taken twice
        assert [line["digest"] for line in found] == [expected[line["step"]] for line in found]
    assert len({line["digest"] for line in lines_of(whole, 0)}) == len(lines_of(whole, 0))


@needs_jax
@pytest.mark.process
def test_a_learning_rate_set_live_is_the_one_that_moves_the_weights(
    jobs: list[JaxJob], tmp_path: Path
) -> None:
    hyper = {"batch_size": 8, "epochs": 100_000, "optimizer": "sgd", "lr": 0.1, "hidden": 16}
    jobs.append(JaxJob(tmp_path / "job", hyper))
    job = jobs[0]
    job.passes(5)
    until(lambda: len(knob(job.id, "lr").get("ranks", ())) == WORLD, LONG)

    outcome = door.ask("set", None, job=job.id, values={"lr": 0.0}, wait=PATIENCE)
    at = outcome["effective_step"]
    job.passes(at + 10)

    assert outcome["state"] == "applied"
    for rank in range(WORLD):
        digests = {line["step"]: digest_of_weights(line) for line in job.lines(rank)}
        moving = [digests[step] for step in range(at + 1)]
        assert len(set(moving)) == at + 1  # each step has moved them
        assert {digests[step] for step in range(at, at + 10)} == {digests[at]}


def digest_of_weights(line: dict[str, Any]) -> str:
    """Return the digests of the weights alone; momentum grows whatever the rate is."""
    return json.dumps({k: v for k, v in line["tensors"].items() if ".optimizer." not in k})


def knob(job: str, name: str) -> dict[str, Any]:
    with contextlib.suppress(LoomError, KeyError, OSError):
        return {one["name"]: one for one in door.ask("knobs", job=job)}.get(name, {})
    return {}
