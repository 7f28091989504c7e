"""State that ranks divide: saved by each, resumed bit by bit, or on another mesh."""

from typing import Any

import pytest

from .conftest import Lives

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
PLAN = {"0": "colwise", "2": "rowwise", "4": "colwise", "6": "rowwise"}


def wrap(strategy: str, **more: Any) -> dict[str, Any]:
    return {"wrap": {"strategy": strategy, **more}}


ALONE = wrap("fsdp")  # one process holds everything
REPLICATED = wrap("data_parallel")
CASES = {
    "fsdp": (2, wrap("fsdp")),
    "hsdp": (4, wrap("hsdp")),
    "tensor": (2, wrap("tensor_parallel", plan=PLAN)),
    "pipeline": (2, wrap("pipeline_parallel", schedule="gpipe")),
    "hybrid": (4, wrap("hybrid", plan=PLAN, mesh={"dp_shard": 2, "tp": 2})),
    "its own": (2, {"own": "wrap"}),
    "tracked": (2, {"own": "track"}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_has_the_bits_of_an_undisturbed_one(lives: Lives, case: str) -> None:
    world, told = CASES[case]
    whole = lives.run(world, script="divided.py", **told)

    saved = {"checkpointing": {"every_n_steps": 3}, "leave": 7}
    lives.run(world, script="divided.py", **told, **saved)
    rest = lives.run(world, script="divided.py", resume=6, **told)

    assert all([row["step"] for row in mine] == list(range(6, len(whole[0]))) for mine in rest)
    assert rest == [mine[6:] for mine in whole]
    (first, *_) = lives.events("restored")
    assert (first["exact"], first["why"]) == (True, "")


WAYS = {
    "2 shards to 4": ((2, wrap("fsdp")), (4, wrap("fsdp"))),
    "4 shards to 2": ((4, wrap("fsdp")), (2, wrap("fsdp"))),
    "fsdp to ddp": ((2, wrap("fsdp")), (2, REPLICATED)),
    "ddp to fsdp": ((2, REPLICATED), (2, wrap("fsdp"))),
    "tensor 2 to 1": ((2, wrap("tensor_parallel", plan=PLAN)), (1, ALONE)),
    "pipeline 2 to 1": ((2, wrap("pipeline_parallel", schedule="gpipe")), (1, ALONE)),
    "hybrid to pipeline": (
        (4, wrap("hybrid", plan=PLAN, mesh={"dp_shard": 2, "tp": 2})),
        (4, wrap("hybrid", mesh={"pp": 2, "dp_shard": 2})),
    ),
    "hsdp to fsdp1": ((4, wrap("hsdp")), (1, ALONE)),
}


def tensors(lives: Lives, life: int, name: str, world: int) -> dict[str, Any]:
    """Return the whole tensors that the ranks of a life kept, as plain torch gathered them."""
    import torch

    folder = lives.folder / f"life-{life}"
    found: dict[str, Any] = {}
    for rank in range(world):
        found |= torch.load(folder / f"{name}-{rank}.pt")  # a stage has some of them only
    return {key: (str(each.dtype), each.tolist()) for key, each in found.items()}


@pytest.mark.parametrize("way", WAYS)
def test_state_is_the_same_on_another_mesh_and_back(lives: Lives, way: str) -> None:
    (there, before), (here, after) = WAYS[way]
    saves = {"script": "divided.py", "checkpointing": {"every_n_seconds": 9999.0}, "batch_size": 2}

    lives.run(there, **before, **saves, asks=[1], leave=1)
    lives.run(here, **after, **saves, resume=2, idle=True, asks=[2], leave=2)
    (moved, *_) = lives.events("restored")
    lives.run(there, **before, **saves, resume=3, idle=True, leave=3)

    first = tensors(lives, 1, "end", there)
    assert len(first) == 8 + 8 * 3 + 1  # parameters, three of AdamW for each, a buffer
    assert tensors(lives, 2, "resumed", here) == first
    assert tensors(lives, 3, "resumed", there) == first
    assert (moved["exact"], moved["step"]) == (False, 2)
    assert "world size" in moved["why"] or "mesh" in moved["why"]
