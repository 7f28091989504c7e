"""Scripts with the Hugging Face `Trainer` are seen, steered and resumed without a line in them."""

import json
import math
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from torchloom.bus.progress_page import PageView
from torchloom.checkpoint import Manifest, Shard, TrainerFiles, open_storage
from torchloom.client import plane as door
from torchloom.messages.plane import Event, Metrics, Register

from ...harness.forked_ranks import free_port
from ...harness.home import until
from ...harness.plane_jobs import LOOM, PATIENCE, Plane, loom
from ..run.conftest import commit
from ..threadlet.conftest import Ranks
from .trainer_jobs import SCRIPTS, WORLD, TrainerJob, audit, demanded, ending, flip, refused

pytestmark = [
    pytest.mark.process,
    pytest.mark.needs("torch"),
    pytest.mark.needs("transformers"),
]
SCRIPT = "huggingface.py"
PROGRAM = SCRIPTS / SCRIPT
STEPS = 40
KILLED = 27  # the step that both ranks wait at when one is killed
CHANGES = {7: 0.03, 8: 0.02}  # the lr by the step at which it is set
STOPPED = 14


@pytest.fixture(scope="module")
def undisturbed(
    plane: Plane, warm: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TrainerJob]:
    """Give a job whose lr was set at a step and that saved on demand; it has ended by itself."""
    out = tmp_path_factory.mktemp("hf") / "undisturbed"
    with ending(TrainerJob(SCRIPT, out, hold=3, KEEPS=2)) as job:
        job.held(3)
        job.ready()
        set_lr(job)
        with demanded(job):
            job.release()
        assert job.over() == "COMPLETED"
        yield job


def set_lr(job: TrainerJob) -> None:
    for step, lr in CHANGES.items():
        door.ask("set", None, job=job.id, values={"lr": lr}, at=step, wait=0.0)


def used_lr() -> list[float]:
    """Return the lr of each step: the script's own schedule, scaled by the changes."""
    own = [0.1 * 0.5 * (1 + math.cos(math.pi * step / STEPS)) for step in range(STEPS)]
    used = list(own)
    for at, value in CHANGES.items():
        used[at:] = [value * (lr / own[at]) for lr in own[at:]]
    return used


def events(ranks: Ranks, kind: str) -> list[dict[str, Any]]:
    return [dict(one.facts) for one in ranks.agent.of(Event) if one.kind == kind]


def test_a_stop_saves_and_ends_the_training_and_the_script_goes_on(ranks: Ranks) -> None:
    root, files = ranks.folder / "checkpoints", ranks.folder / "rank-0" / "files"
    told = {"LOOM_CHECKPOINT_ROOT": str(root), "NOISY": "1", "MASTER_PORT": str(free_port())}
    running = ranks.start(str(PROGRAM), STEPS="1000000", KEEPS="1", **told)
    ranks.agent.wait_for_boundaries(1, "lr")

    _, step = ranks.agent.insist(1, "stop")
    ranks.printed(running)

    ended = json.loads((ranks.folder / "rank-0" / "ends-0").read_text())
    facts = events(ranks, "checkpoint_shard")[-1]
    there = {one.name: one.read_bytes() for one in (files / f"checkpoint-{step}").iterdir()}
    hashes = {name: f"blake3:{blake3(content).hexdigest()}" for name, content in there.items()}
    assert (ended[0], facts["step"], facts["trigger"]) == (step, step, "stop")
    assert {name: content for name, _, content in facts["trainer"]["files"]} == hashes
    assert sorted(path.name for path in files.iterdir()) == [f"checkpoint-{step}"]

    place = committed(root, facts)
    more = {**told, "MASTER_PORT": str(free_port()), "LOOM_RESUME": place}
    ranks.run(str(PROGRAM), STEPS=str(step + 5), LOOM_GENERATION="1", **more)

    lines = (ranks.folder / "rank-0" / "steps-0").read_text().splitlines()
    assert [json.loads(line)[1] for line in lines][-5:] == list(range(step, step + 5))
    (restored,) = events(ranks, "restored")
    assert (restored["step"], restored["exact"]) == (step, False)
    assert restored["why"] == "the dataset draws random numbers, which are not drawn again"


def shown(job: TrainerJob) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(loom("show", job.id, "--json"))
    return found


def committed(root: Path, facts: dict[str, Any]) -> str:
    """Commit what a rank alone has saved, as an agent does; return its place."""
    shard = Shard(*(facts[name] for name in ("name", "size", "hash", "rank")))
    names = ("step", "epoch", "strategy", "backend", "optimizer_state", "rng_state", "versions")
    manifest = Manifest(
        job_id="job",
        run_id="job",
        world_size=1,
        shards=(shard,),
        generation=facts["generation"],
        attempt=facts["attempt"],
        created_at="2026-01-31T12:00:00+00:00",
        trainer=TrainerFiles.from_dict(facts["trainer"]),
        **{name: facts[name] for name in names},
    )
    return open_storage(str(root), {}).commit(manifest.draft, manifest)


@pytest.mark.shows("Script like `run_clm.py`", "curve", "step")
def test_a_script_that_passes_its_own_checkpoint_has_its_way(ranks: Ranks) -> None:
    root, files = ranks.folder / "checkpoints", ranks.folder / "rank-0" / "files"
    env = {"LOOM_CHECKPOINT_ROOT": str(root), "STREAM": "1"}
    ranks.run_and_close(str(PROGRAM), STEPS="25", MASTER_PORT=str(free_port()), **env)
    assert commit(ranks.agent, open_storage(str(root), {}))[:2] == [10, 20]

    env |= {"LOOM_RESUME": str(root / "ckpt_step_00020"), "LOOM_GENERATION": "1"}
    own = {"OWN": str(files / "checkpoint-10"), "MASTER_PORT": str(free_port())}
    ranks.run_and_close(str(PROGRAM), STEPS="15", **own, **env)

    lines = (ranks.folder / "rank-0" / "steps-0").read_text().splitlines()
    assert [json.loads(line)[1] for line in lines][25:] == list(range(10, 15))
    (restored,) = events(ranks, "restored")
    assert (restored["step"], restored["path"]) == (10, str(files / "checkpoint-10"))
    assert restored["why"] == "the order of an IterableDataset is its own"
    last = (ranks.folder / "rank-0" / "ends-0").read_text().splitlines()[-1]
    logged = {row["step"]: row["loss"] for row in json.loads(last)[2] if "loss" in row}
    recorded = {
        int(row[0]): row[one.names.index("loss") + 2]
        for one in ranks.agent.of(Metrics)
        for row in one.rows
        if "loss" in one.names
    }
    assert {step: recorded[step] for step in (5, 10, 15)} == logged


def test_a_trainer_that_the_user_skips_is_not_observed(ranks: Ranks) -> None:
    env = {"SAVES": "no", "STEPS": "6", "MASTER_PORT": str(free_port())}
    ranks.run_and_close(str(PROGRAM), LOOM_ATTACH_SKIP="transformers", **env)

    names = {name for one in ranks.agent.of(Metrics) for name in one.names}
    knobs = {knob.name for knob in ranks.agent.of(Register)[-1].knobs}
    assert "loss" in names  # as of any loop
    assert "learning_rate" not in names | knobs
    assert events(ranks, "checkpointing") == []


def test_a_training_that_cannot_be_observed_goes_on(ranks: Ranks) -> None:
    told = {"SAVES": "no", "ODD": "1", "STEPS": "8", "MASTER_PORT": str(free_port())}
    (printed,) = ranks.run_and_close(str(PROGRAM), **told)

    notes = [line for line in printed.splitlines() if line.startswith("loom: transformers")]
    view = PageView.open(ranks.folder / "page-0")
    assert json.loads((ranks.folder / "rank-0" / "ends-0").read_text())[0] == 8
    assert [line.partition(", training continues: ")[2] for line in notes] == [
        "RuntimeError: it has no shape"
    ]
    assert view is not None
    assert view.read().step == 8  # its optimizer's steps are counted from there


@pytest.mark.shows("Hugging Face `Trainer`", "curve")
def test_the_curves_are_what_the_trainer_logged(undisturbed: TrainerJob) -> None:
    ((_, _, history),) = undisturbed.lines("ends")

    names = {name for row in history for name in row} - {"step"}
    logged = {
        name: {row["step"]: row[name] for row in history if name in row} for name in sorted(names)
    }
    assert {"loss", "grad_norm", "learning_rate", "epoch", "eval_loss", "train_loss"} <= names
    assert {name: undisturbed.curve(name) for name in sorted(names)} == logged
    assert set(undisturbed.curve("loom/batch_size").values()) == {4.0}
    assert max(undisturbed.curve("loom/samples_per_second").values()) > 0


@pytest.mark.shows("Hugging Face `Trainer`", "step", "lr")
def test_steps_and_lr_are_those_of_the_trainer(undisturbed: TrainerJob) -> None:
    for rank in range(WORLD):
        taken = undisturbed.taken(rank)

        assert [one.step for one in taken] == list(range(STEPS))
        assert [one.lr for one in taken] == pytest.approx(used_lr(), rel=1e-6)
        assert [one.moved for one in taken[:-1]] == pytest.approx(used_lr()[:-1], rel=1e-3)
    assert door.ask("job", job=undisturbed.id)["step"] == STEPS


def test_training_arguments_are_the_config_without_secrets(undisturbed: TrainerJob) -> None:
    config = door.ask("experiment", run=undisturbed.id)["config"]

    assert (config["learning_rate"], config["lr_scheduler_type"]) == (0.1, "cosine")
    assert "not_to_be_seen" not in json.dumps(config)


@pytest.mark.shows("Hugging Face `Trainer`", "checkpoint")
def test_a_checkpoint_on_demand_is_saved_by_the_trainer_at_one_step(
    undisturbed: TrainerJob, plane: Plane
) -> None:
    demanded = json.loads((undisturbed.out / "demanded").read_text())

    step, made = demanded["effective_step"], demanded["checkpoint"]
    (command,) = audit(undisturbed, "checkpoint")
    acks = {ack["rank"]: (ack["state"], ack["step"]) for ack in command["ranks"]}
    assert acks == dict.fromkeys(range(WORLD), ("applied", step))
    assert 3 < step < 10
    assert (made["state"], made["step"], made["trainer"]) == ("committed", step, "transformers")
    assert made["path"] == str(undisturbed.out / "files" / f"checkpoint-{step}")


def test_checkpoints_that_the_trainer_removes_are_removed(
    undisturbed: TrainerJob, plane: Plane
) -> None:
    listed = json.loads(loom("checkpoint", "ls", undisturbed.id, "--json"))
    there = sorted(path.name for path in (undisturbed.out / "files").iterdir())

    assert there == ["checkpoint-30", "checkpoint-40"]
    assert [Path(one["path"]).name for one in listed] == ["checkpoint-40", "checkpoint-30"]
    rows = undisturbed.rows(plane)
    states = {step: state for step, (state, _, _) in rows.items()}
    assert {states[10], states[20]} == {"removed"}
    assert {states[30], states[40]} == {"committed"}
    assert "whole: " in loom("checkpoint", "verify", undisturbed.id)
    said = refused("checkpoint", "export", undisturbed.id, "-o", "/tmp/model.pt")
    assert f"read {undisturbed.out}/files/checkpoint-40 with transformers" in said


@pytest.mark.shows("Hugging Face `Trainer`", "killed")
def test_a_killed_job_resumes_from_the_newest_whole_checkpoint_with_the_same_bits(
    undisturbed: TrainerJob, plane: Plane, tmp_path: Path
) -> None:
    with ending(
        TrainerJob(SCRIPT, tmp_path / "killed", hold=3, retries=1, policy="restart")
    ) as job:
        job.held(3)
        job.ready()
        set_lr(job)
        job.hold(KILLED)
        job.held(KILLED)
        until(lambda: job.rows(plane).get(20, ("",))[0] == "committed", PATIENCE)
        torn = job.out / "files" / "checkpoint-20" / "model.safetensors"
        flip(torn)
        job.release()
        first = {rank: job.pid(rank) for rank in range(WORLD)}
        job.kill(1)
        assert job.over() == "COMPLETED"

    for rank in range(WORLD):
        later = [one for one in job.taken(rank) if one.pid != first[rank]]
        assert [one.step for one in later] == list(range(10, STEPS))
        assert [one.lr for one in later] == [one.lr for one in undisturbed.taken(rank)[10:]]
        assert [one.digest for one in later] == [one.digest for one in undisturbed.taken(rank)[10:]]
    assert job.rows(plane)[20][0] == "committed"  # it was saved again
    (damaged,) = job.events(plane, "checkpoint_damaged", 1)
    assert (damaged["step"], damaged["name"]) == (20, str(torn))
    (restored,) = job.events(plane, "restored", 1)
    assert (restored["step"], restored["exact"]) == (10, True)
    ((_, _, history),) = job.lines("ends")
    assert job.curve("loss") == {row["step"]: row["loss"] for row in history if "loss" in row}


@pytest.mark.shows("Hugging Face `Trainer`", "stop", "fewer")
def test_a_job_is_stopped_resumed_and_resized_in_the_trainers_own_way(
    undisturbed: TrainerJob, plane: Plane, tmp_path: Path
) -> None:
    with ending(TrainerJob(SCRIPT, tmp_path / "stopped", hold=3, SAVES="no")) as job:
        job.held(3)
        job.ready()
        set_lr(job)
        files = job.out / "files"
        files.rename(job.out / "away")
        files.touch()
        assert f"nothing can be saved in {files}: Not a directory" in refused("checkpoint", job.id)
        files.unlink()
        (job.out / "away").rename(files)
        job.hold(STOPPED)
        job.held(STOPPED)
        until(lambda: shown(job)["step"] == STOPPED, PATIENCE)
        left = shown(job)
        released = door.ask("pause", None, job=job.id, release=True, wait=0.0)
        job.release()
        until(lambda: job.state() == "PAUSED", PATIENCE)
        at = len(job.taken())
        ((saved, _, _),) = job.lines("ends")

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

    assert (left["step"], left["total_steps"]) == (STOPPED, STEPS)
    assert left["eta_seconds"] >= 0
    assert (released["kind"], saved) == ("stop", at)
    assert before == [one.digest for one in undisturbed.taken()[: len(before)]]
    later = [one for one in job.taken() if one.pid == job.pid(0)]
    assert [one.step for one in later] == list(range(at, STEPS))
    assert [one.lr for one in later] == [one.lr for one in undisturbed.taken()[at:]]
    exact, resized = job.events(plane, "restored", 2)
    assert (exact["step"], exact["exact"]) == (at, True)
    assert (resized["step"], resized["why"]) == (at, "world size 2 -> 1")


def test_a_launch_that_gets_sigterm_saves_in_the_trainers_way(
    plane: Plane, warm: None, tmp_path: Path
) -> None:
    env = {**os.environ, "OUT": str(tmp_path), "STEPS": "1000000", "EVERY": "1000000"}
    words = [LOOM, "launch", "-n", str(WORLD), str(PROGRAM)]
    steps = tmp_path / "steps-0"
    with subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL) as launch:
        until(lambda: steps.exists() and len(steps.read_text().splitlines()) > 12, PATIENCE)
        launch.send_signal(signal.SIGTERM)
        launch.wait(PATIENCE)

    ends = [json.loads((tmp_path / f"ends-{rank}").read_text())[0] for rank in range(WORLD)]
    assert ends[0] == ends[1]
    with plane.database("state") as base:
        query = "SELECT step, state, trigger FROM checkpoints WHERE path = ?"
        path = str(tmp_path / "files" / f"checkpoint-{ends[0]}")
        assert base.execute(query, (path,)).fetchall() == [(ends[0], "committed", "stop")]
