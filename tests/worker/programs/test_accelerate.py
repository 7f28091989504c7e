"""Loops with Accelerate are seen and steered; they save at one step, and restore themselves."""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.checkpoint import open_storage
from torchloom.client import plane as door
from torchloom.messages.plane import Event, Metrics

from ...harness.forked_ranks import free_port
from ...harness.home import until
from ...harness.plane_jobs import PATIENCE, Plane, loom
from ..run.conftest import commit
from ..threadlet.conftest import Ranks
from ..threadlet.fake_agent import listening
from .trainer_jobs import SCRIPTS, WORLD, TrainerJob, audit, demanded, ending, flip

pytestmark = [pytest.mark.process, pytest.mark.needs("torch"), pytest.mark.needs("accelerate")]
SCRIPT = "accelerated.py"
STEPS = 40  # an epoch has 6
KILLED = 27  # the step that both ranks wait at when one is killed
SET, LR = 7, 0.01  # at which step the lr is set, and to what
STOPPED = 14
OWN = "the program restores its own counters and its position in the data"


def started(out: Path, retries: int = 0, **env: object) -> TrainerJob:
    """Start a job, and set its lr when it holds before its step 3."""
    job = TrainerJob(SCRIPT, out, hold=3, retries=retries, **env)
    job.held(3)
    job.ready()
    door.ask("set", None, job=job.id, values={"lr": LR}, at=SET, wait=0.0)
    return job


@pytest.fixture(scope="module")
def undisturbed(
    plane: Plane, warm: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TrainerJob]:
    """Give a job whose lr was set at a step and that saved on demand; it has ended by itself."""
    out = tmp_path_factory.mktemp("acc") / "undisturbed"
    with ending(started(out)) as job:
        with demanded(job):
            job.release()
        assert job.over() == "COMPLETED"
        yield job


def used_lr() -> list[float]:
    """Return the lr of each step: the schedule takes two of its own, one a rank."""
    own = [0.05 * 0.5 * (1 + math.cos(math.pi * 2 * step / 400)) for step in range(STEPS)]
    return [lr if step < SET else LR * (lr / own[SET]) for step, lr in enumerate(own)]


def logged(job: TrainerJob) -> dict[int, float]:
    """Return the loss that the program's own tracker got, by its step."""
    return {step: values["train_loss"] for step, values in job.lines("logged")}


@pytest.mark.shows("Accelerate", "curve")
def test_the_curves_are_what_the_trackers_got(undisturbed: TrainerJob) -> None:
    assert undisturbed.curve("train_loss") == logged(undisturbed)
    assert sorted(undisturbed.curve("loss")) == list(range(STEPS))
    config = door.ask("experiment", run=undisturbed.id)["config"]
    assert config["width"] == 16
    assert "hub_token" not in config


@pytest.mark.shows("Accelerate", "step", "lr")
def test_steps_and_lr_are_those_of_the_program(undisturbed: TrainerJob) -> None:
    for rank in range(WORLD):
        taken = undisturbed.taken(rank)

        assert [one.step for one in taken] == list(range(STEPS))
        assert [one.moved for one in taken] == pytest.approx(used_lr(), rel=1e-9)
    assert door.ask("job", job=undisturbed.id)["step"] == STEPS


@pytest.mark.shows("Accelerate", "checkpoint")
def test_a_checkpoint_on_demand_is_saved_where_the_program_saves(
    undisturbed: TrainerJob, plane: Plane
) -> None:
    made = json.loads((undisturbed.out / "demanded").read_text())

    (command,) = audit(undisturbed, "checkpoint")
    acks = {ack["rank"]: (ack["state"], ack["step"]) for ack in command["ranks"]}
    assert acks == dict.fromkeys(range(WORLD), ("applied", made["effective_step"]))
    assert 3 < made["effective_step"] < 10
    assert made["checkpoint"]["trainer"] == "accelerate"
    rows = {step: (state, path) for step, (state, _, path) in undisturbed.rows(plane).items()}
    folder = undisturbed.out / "checkpoints"
    steps = [made["effective_step"], 10, 20, 30, 40]
    assert rows == {
        step: ("committed", str(folder / f"checkpoint_{at}")) for at, step in enumerate(steps)
    }
    assert "whole: " in loom("checkpoint", "verify", undisturbed.id)


@pytest.mark.shows("Accelerate", "killed")
def test_a_killed_job_restores_the_newest_whole_checkpoint_with_the_same_bits(
    undisturbed: TrainerJob, plane: Plane, tmp_path: Path
) -> None:
    with ending(started(tmp_path / "killed", retries=1)) as job:
        job.hold(KILLED)
        job.held(KILLED)
        until(lambda: job.rows(plane).get(20, ("",))[0] == "committed", PATIENCE)
        torn = job.out / "checkpoints" / "checkpoint_1" / "model.safetensors"
        flip(torn)
        until(lambda: set(range(10)) <= job.curve("loss").keys(), PATIENCE)  # not taken again
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
    assert (restored["step"], restored["exact"], restored["why"]) == (10, False, OWN)
    assert sorted(job.curve("loss")) == list(range(STEPS))


@pytest.mark.shows("Accelerate", "stop", "fewer")
def test_a_job_is_stopped_resumed_and_resized(
    undisturbed: TrainerJob, plane: Plane, tmp_path: Path
) -> None:
    with ending(started(tmp_path / "stopped", EVERY=1000)) as job:
        job.hold(STOPPED)
        job.held(STOPPED)
        door.ask("pause", None, job=job.id, release=True, wait=0.0)
        job.release()
        until(lambda: job.state() == "PAUSED", PATIENCE)
        at = len(job.taken())

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

    assert before == [one.digest for one in undisturbed.taken()[: len(before)]]
    later = [one for one in job.taken() if one.pid == job.pid(0)]
    assert [one.step for one in later] == list(range(at, STEPS))
    exact, resized = job.events(plane, "restored", 2)
    assert (exact["step"], exact["why"]) == (at, OWN)
    assert (resized["step"], resized["why"]) == (at, f"world size 2 -> 1; {OWN}")


def test_an_accelerator_that_the_user_skips_is_not_observed(ranks: Ranks) -> None:
    env = {"FILES": str(ranks.folder), "STEPS": "8", "MASTER_PORT": str(free_port())}
    ranks.run(ranks.closing(str(SCRIPTS / SCRIPT)), LOOM_ATTACH_SKIP="accelerate", **env)

    names = {name for one in ranks.agent.of(Metrics) for name in one.names}
    assert "loss" in names  # as of any loop
    assert "train_loss" not in names
    assert ranks.folder.joinpath("ends-0").exists()


def test_a_program_that_does_not_restore_itself_is_told_so(ranks: Ranks) -> None:
    store = ranks.folder / "saved"
    env = {"FILES": str(ranks.folder), "LOOM_CHECKPOINT_ROOT": str(store), "STEPS": "12"}
    env |= {"FORGETS": "1", "MASTER_PORT": str(free_port())}
    ranks.run(ranks.closing(str(SCRIPTS / SCRIPT)), 1, **env)
    assert commit(ranks.agent, open_storage(str(store), os.environ)) == [10]

    ranks.agent.close()
    with listening(ranks.agent.path) as agent:
        ranks.agent = agent
        place = {"LOOM_RESUME": str(store / "ckpt_step_00010"), "EVERY": "1000"}
        (printed,) = ranks.run(ranks.closing(str(SCRIPTS / SCRIPT)), 1, **{**env, **place})
        facts: list[Any] = [one.facts for one in agent.of(Event) if one.kind == "restored"]

    path = ranks.folder / "checkpoints" / "checkpoint_0"
    why = f"the program has not loaded its checkpoint of step 10 in {path}: call"
    assert [(one["step"], one["exact"]) for one in facts] == [(0, False)]
    assert why in facts[0]["why"]
    assert why in printed
