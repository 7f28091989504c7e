"""Programs with a loop of their own are seen and steered, however their model is spread."""

import json
from pathlib import Path
from typing import Any

import pytest

from torchloom.client import plane as door
from torchloom.messages.plane import Metrics

from ...harness.forked_ranks import free_port
from ...harness.plane_jobs import Plane
from ..threadlet.conftest import Ranks
from .trainer_jobs import TrainerJob, ending

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
SCRIPT = str(Path(__file__).parent / "scripts" / "trained.py")
WORLD, STEPS, HELD = 2, 16, 4
NEW = 0.03
LONG = ("DDP", "FSDP2", "TP")  # killed as the loop like nanoGPT's is


def rows(ranks: Ranks, rank: int) -> list[Any]:
    """Return process, step, the program's lr, the shown lr and the loss, by its own file."""
    lines = (ranks.folder / f"steps-{rank}").read_text().splitlines()
    return [json.loads(line) for line in lines]


def curve(ranks: Ranks, rank: int) -> dict[int, float]:
    """Return the loss by step, as it was recorded."""
    return {
        int(row[0]): float(row[metrics.names.index("loss") + 2])  # type: ignore[arg-type]
        for metrics in ranks.agent.of(Metrics, rank)
        for row in metrics.rows
        if "loss" in metrics.names
    }


def steered(ranks: Ranks, kind: str) -> int:
    """Run a program whose lr is set while it holds; return the step of the change."""
    env = {"KIND": kind, "FILES": str(ranks.folder), "MASTER_PORT": str(free_port())}
    (ranks.folder / "hold").write_text(str(HELD))
    running = ranks.start(ranks.closing(SCRIPT), WORLD, STEPS=str(STEPS), **env)
    ranks.agent.wait_for_boundaries(WORLD, "lr")
    command = ranks.agent.prepare(range(WORLD), "knob", {"name": "lr", "value": NEW})
    changed = ranks.agent.decide(command, ranks.agent.promises(command, WORLD))
    ranks.agent.tell(range(WORLD), command, changed)
    (ranks.folder / "hold").unlink()
    ranks.printed(running)
    return changed


def check(ranks: Ranks, kind: str) -> None:
    changed = steered(ranks, kind)

    assert 0 < changed <= HELD + 2
    for rank in range(WORLD):
        found = rows(ranks, rank)
        own = {step: lr for _, step, lr, *_ in found}
        scale = NEW / own[changed]
        used = [lr * (scale if step >= changed else 1) for step, lr in own.items()]
        assert list(own) == list(range(STEPS))
        assert [moved for *_, moved, _ in found] == pytest.approx(used, rel=1e-3)
        assert curve(ranks, rank) == pytest.approx({step: loss for _, step, *_, loss in found})


@pytest.mark.shows("DDP loop", "curve", "lr")
def test_a_ddp_loop_is_seen_and_steered(ranks: Ranks) -> None:
    check(ranks, "DDP")


@pytest.mark.shows("DDP loop", "step")
@pytest.mark.shows("Loop like nanoGPT's", "step")
@pytest.mark.shows("FSDP2 loop", "step")
@pytest.mark.shows("Tensor parallel loop", "step")
@pytest.mark.parametrize("kind", ["DDP", "nanoGPT", "FSDP2", "TP"])
def test_a_loop_that_continues_from_its_own_checkpoint_has_its_own_steps(
    ranks: Ranks, kind: str
) -> None:
    env = {"KIND": kind, "FILES": str(ranks.folder), "ADAM": "1"}
    ranks.run(SCRIPT, WORLD, attach=False, STEPS="9", MASTER_PORT=str(free_port()), **env)

    ranks.run_and_close(SCRIPT, WORLD, STEPS="14", MASTER_PORT=str(free_port()), **env)

    for rank in range(WORLD):
        found = {step: loss for _, step, *_, loss in rows(ranks, rank)[9:]}
        assert list(found) == list(range(9, 14))
        assert curve(ranks, rank) == pytest.approx(found)


@pytest.mark.shows("FSDP2 loop", "curve", "lr")
def test_an_fsdp2_loop_is_seen_and_steered(ranks: Ranks) -> None:
    check(ranks, "FSDP2")


@pytest.mark.shows("Tensor parallel loop", "curve", "lr")
def test_a_tensor_parallel_loop_is_seen_and_steered(ranks: Ranks) -> None:
    check(ranks, "TP")


@pytest.mark.shows("Loop like nanoGPT's", "curve", "lr")
def test_a_loop_with_accumulation_clipping_and_its_own_schedule_is_seen_and_steered(
    ranks: Ranks,
) -> None:
    check(ranks, "nanoGPT")


@pytest.mark.shows("Loop like nanoGPT's", "killed")
@pytest.mark.shows("DDP loop", "killed")
@pytest.mark.shows("FSDP2 loop", "killed")
@pytest.mark.shows("Tensor parallel loop", "killed")
@pytest.mark.parametrize(
    "kind", ["nanoGPT", *(pytest.param(one, marks=pytest.mark.soak) for one in LONG)]
)
def test_a_killed_loop_that_saves_itself_continues_with_the_lr_that_was_set(
    plane: Plane, warm: None, tmp_path: Path, kind: str
) -> None:
    told = {"KIND": kind, "ADAM": 1, "EVERY": 10, "STEPS": 30}
    with ending(TrainerJob("trained.py", tmp_path / "out", hold=3, retries=1, **told)) as job:
        job.held(3)
        job.ready()
        door.ask("set", None, job=job.id, values={"lr": NEW}, at=7, wait=0.0)
        job.hold(27)
        job.held(27)
        first = {rank: job.pid(rank) for rank in range(WORLD)}
        job.release()
        job.kill(1)
        assert job.over() == "COMPLETED"

    for rank in range(WORLD):
        before = [one for one in job.taken(rank) if one.pid == first[rank]]
        later = [one for one in job.taken(rank) if one.pid != first[rank]]
        own = {one.step: one.lr for one in (*before, *later)}
        used = [one.lr * (NEW / own[7] if one.step >= 7 else 1) for one in (*before, *later)]
        assert [one.step for one in later] == list(range(20, 30))
        assert [one.moved for one in (*before, *later)] == pytest.approx(used, rel=1e-3)
        again = {one.step: one.digest for one in later}
        assert {one.step: again[one.step] for one in before[20:]} == {
            one.step: one.digest for one in before[20:]
        }
    assert job.curve("loss") == pytest.approx({one.step: one.digest for one in job.taken()})
    assert door.ask("job", job=job.id)["step"] == 30
