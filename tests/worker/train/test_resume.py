"""Ready-made training saves as its job says, and goes on with the same bits."""

import os
from pathlib import Path
from typing import Any

import pytest

from torchloom.checkpoint import open_storage
from torchloom.messages.plane import Event, Goodbye

from ..run.conftest import commit
from ..threadlet.fake_agent import FakeAgent, listening
from .conftest import Train, rows
from .jobs import words

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
HYPER: dict[str, Any] = {"batch_size": 8, "epochs": 3, "lr": 0.1, "accumulate": 2, "clip": 0.5}
EVERY = {"enabled": True, "every_n_steps": 3}


def lived(
    train: Train, folder: Path, told: str, world: int, **env: str
) -> tuple[list[list[Any]], FakeAgent]:
    """Train with an agent beside it; return the ranks' rows, with all that was told committed."""
    root = folder / "checkpoints"
    with listening(folder / f"agent-{len(list(folder.iterdir()))}") as agent:
        ended = train(
            told,
            world,
            LOOM_AGENT=str(agent.path),
            LOOM_CHECKPOINT_ROOT=str(root),
            LOOM_JOB="job",
            **env,
        )
        assert [code for code, _ in ended] == [0] * world, ended
        agent.wait(Goodbye, world)
        commit(agent, open_storage(str(root), os.environ))
    return rows(folder, world), agent


@pytest.mark.parametrize(("world", "at"), [(1, 6), (3, 3), (2, 6)])
def test_it_goes_on_with_the_bits_of_an_undisturbed_training(
    train: Train, table: Path, tmp_path: Path, world: int, at: int
) -> None:
    fields = {"model": "module:mine.noisy", "dataset": f"npz:{table}", "seed": 5}
    hyper = {**HYPER, "optimizer": "adamw", "schedule": "cosine", "loader_workers": world % 2}
    told = words(hyper, checkpointing=EVERY, **fields)

    whole = lived(train, tmp_path, words(hyper, **fields), world)[0]
    lived(train, tmp_path, told, world, LOOM_UNTIL=str(at + 1))
    place = str(tmp_path / "checkpoints" / f"ckpt_step_{at:05}")
    again, agent = lived(train, tmp_path, told, world, LOOM_RESUME=place, LOOM_GENERATION="1")

    assert len(whole[0]) > at + 2
    assert again == [rows[at:] for rows in whole]
    told_of = [one.facts for one in agent.of(Event) if one.kind == "restored"]
    assert [(one["step"], one["exact"], one["why"]) for one in told_of] == [(at, True, "")] * world


def test_what_a_job_says_of_its_checkpoints_is_done(
    train: Train, table: Path, tmp_path: Path
) -> None:
    told = words(HYPER, model="module:mine.net", dataset=f"npz:{table}", checkpointing=EVERY)

    lived(train, tmp_path, told, 1)

    last = 3 * -(-183 // 16)
    storage = open_storage(str(tmp_path / "checkpoints"), os.environ)
    assert storage.committed() == sorted({*range(3, last + 1, 3), last}, reverse=True)
