"""Jobs of Lightning programs are seen, steered and resumed without a line in them."""

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.client import plane as door

from ...harness.home import until
from ...harness.plane_jobs import PATIENCE, Plane, loom
from .trainer_jobs import WORLD, TrainerJob, audit, demanded, ending, flip, refused

pytestmark = [pytest.mark.process, pytest.mark.needs("torch"), pytest.mark.needs("lightning")]
SCRIPT = "fit.py"
STEPS = 40  # an epoch has 12
TRAINER = {"max_steps": STEPS, "log_every_n_steps": 5, "num_sanity_val_steps": 0}
SAVES = {"every_n_train_steps": 10, "save_top_k": 2, "monitor": "step", "mode": "max"}
KILLED = 27  # the step that both ranks wait at when one is killed
SET, LR = 7, 0.002  # at which step the lr is set, and to what
STOPPED = 14


def started(out: Path, retries: int = 0, policy: str = "", **env: str) -> TrainerJob:
    """Start a job, and set its lr when it holds before its step 3."""
    saves = {} if env else {"SAVES": json.dumps(SAVES)}
    told = {"TRAINER": json.dumps(TRAINER), "LOGS": "logs", **saves, **env}
    job = TrainerJob(SCRIPT, out, hold=3, retries=retries, policy=policy, **told)
    job.held(3)
    job.ready()
    door.ask("set", None, job=job.id, values={"lr": LR}, at=SET, wait=0.0)
    return job


@pytest.fixture(scope="module")
def undisturbed(
    plane: Plane, warm: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TrainerJob]:
    """Give a job whose lr was set at a step and that saved on demand; it has ended by itself."""
    out = tmp_path_factory.mktemp("pl") / "undisturbed"
    with ending(started(out)) as job:
        with demanded(job):
            job.release()
        assert job.over() == "COMPLETED"
        yield job


def used_lr() -> list[float]:
    """Return the lr of each step: the script's own schedule, scaled from one step on."""
    own = [0.01 * 0.5 * (1 + math.cos(math.pi * step / 200)) for step in range(STEPS)]
    return [lr if step < SET else LR * (lr / own[SET]) for step, lr in enumerate(own)]


def curve(path: Path, name: str) -> dict[int, float]:
    """Return a number that the program's own logger wrote, by its step."""
    with path.open() as file:
        return {int(row["step"]): float(row[name]) for row in csv.DictReader(file) if row[name]}


@pytest.mark.shows("Lightning `Trainer`", "curve")
def test_the_curves_are_what_the_loggers_got(undisturbed: TrainerJob) -> None:
    own = undisturbed.out / "logs" / "metrics.csv"

    for name in ("train_loss", "val_loss", "epoch"):
        assert undisturbed.curve(name) == curve(own, name)
    assert sorted(undisturbed.curve("loss")) == list(range(STEPS))
    config = door.ask("experiment", run=undisturbed.id)["config"]
    assert (config["width"], config["more"]) == (16, {"depth": 2})
    assert json.loads(loom("show", undisturbed.id, "--json"))["total_steps"] == STEPS


@pytest.mark.shows("Lightning `Trainer`", "step", "lr")
def test_steps_and_lr_are_those_of_the_trainer(undisturbed: TrainerJob) -> None:
    for rank in range(WORLD):
        taken = undisturbed.taken(rank)

        assert [one.step for one in taken] == list(range(STEPS))
        assert [one.moved for one in taken] == pytest.approx(used_lr(), rel=1e-9)
    assert door.ask("job", job=undisturbed.id)["step"] == STEPS


@pytest.mark.shows("Lightning `Trainer`", "checkpoint")
def test_checkpoints_on_demand_and_of_its_callback_are_those_of_the_run(
    undisturbed: TrainerJob, plane: Plane
) -> None:
    made = json.loads((undisturbed.out / "demanded").read_text())

    step, files = made["effective_step"], undisturbed.out / "files"
    (command,) = audit(undisturbed, "checkpoint")
    acks = {ack["rank"]: (ack["state"], ack["step"]) for ack in command["ranks"]}
    assert acks == dict.fromkeys(range(WORLD), ("applied", step))
    assert 3 < step < 10
    assert made["checkpoint"]["path"] == str(files / f"loom-step={step}.ckpt")
    rows = undisturbed.rows(plane)
    there = {step for step, (state, _, _) in rows.items() if state == "committed"}
    assert there == {step, 30, 40}  # its callback keeps two
    assert {path for state, _, path in rows.values() if state == "committed"} == {
        str(path) for path in files.iterdir()
    }
    assert "whole: " in loom("checkpoint", "verify", undisturbed.id)


@pytest.mark.shows("Lightning `Trainer`", "killed")
def test_a_killed_job_resumes_from_the_newest_whole_checkpoint_with_the_same_bits(
    undisturbed: TrainerJob, plane: Plane, tmp_path: Path
) -> None:
    with ending(started(tmp_path / "killed", retries=1, policy="restart")) as job:
        job.hold(KILLED)
        job.held(KILLED)
        until(lambda: job.rows(plane).get(20, ("",))[0] == "committed", PATIENCE)
        (torn,) = (job.out / "files").glob("*step=20.ckpt")
        flip(torn)
        job.release()
        first = {rank: job.pid(rank) for rank in range(WORLD)}
        job.kill(1)
        assert job.over() == "COMPLETED"

    for rank in range(WORLD):
        later = [one for one in job.taken(rank) if one.pid != first[rank]]
        assert [one.step for one in later] == list(range(10, STEPS))
        assert [one.moved for one in later] == [one.moved for one in undisturbed.taken(rank)[10:]]
        assert [one.digest for one in later] == [one.digest for one in undisturbed.taken(rank)[10:]]
    (damaged,) = job.events(plane, "checkpoint_damaged", 1)
    assert (damaged["step"], damaged["name"]) == (20, str(torn))
    (restored,) = job.events(plane, "restored", 1)
    assert (restored["step"], restored["exact"]) == (10, True)
    for name in ("train_loss", "val_loss"):
        assert job.curve(name) == undisturbed.curve(name)


@pytest.mark.shows("Lightning `Trainer`", "stop", "fewer")
def test_a_job_is_stopped_resumed_and_resized_in_the_trainers_own_way(
    undisturbed: TrainerJob, plane: Plane, tmp_path: Path
) -> None:
    quiet = {"TRAINER": json.dumps({**TRAINER, "enable_checkpointing": False, "logger": False})}
    with ending(started(tmp_path / "stopped", **quiet)) as job:
        files = job.out / "checkpoints"
        files.touch()
        assert f"nothing can be saved in {files}: Not a directory" in refused("checkpoint", job.id)
        files.unlink()
        job.hold(STOPPED)
        job.held(STOPPED)
        door.ask("pause", None, job=job.id, release=True, wait=0.0)
        job.release()
        until(lambda: job.state() == "PAUSED", PATIENCE)
        at = len(job.taken())
        ((saved, _),) = job.lines("ends")

        job.hold(at + 4)
        loom("resume", job.id, "-d")
        job.held(at + 4)
        loom("stop", job.id, "--no-wait")
        until(lambda: bool(audit(job, "stop")[-1:]), PATIENCE)
        job.release()
        assert job.over() == "CANCELLED"
        before = [one.digest for one in job.taken()]

        loom("resume", job.id, "-n", "1", "-d", "--from", str(at))
        until(lambda: job.state() == "RUNNING", PATIENCE)
        assert job.over() == "COMPLETED"

    assert saved == at
    assert before == [one.digest for one in undisturbed.taken()[: len(before)]]
    later = [one for one in job.taken() if one.pid == job.pid(0)]
    assert [one.step for one in later] == list(range(at, STEPS))
    assert [one.lr for one in later] == [one.lr for one in undisturbed.taken()[at:]]
    exact, resized = job.events(plane, "restored", 2)
    assert (exact["step"], exact["exact"]) == (at, True)
    assert (resized["step"], resized["why"]) == (at, "world size 2 -> 1")
