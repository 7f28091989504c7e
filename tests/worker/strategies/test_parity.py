"""Every strategy computes what one process computes in plain torch: losses, gradients, norms."""

from typing import Any

import pytest

from .conftest import Result, Train

pytestmark = [pytest.mark.process, pytest.mark.needs("torch", "transformers")]
CLOSE = 1e-5


def case(model: str, strategy: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "distributed": {"strategy": strategy, **more}}


SEQUENCE = case("transformer", "tensor_parallel", sequence_parallel=True)
CASES = {
    2: [
        case("mlp", "fsdp"),
        case("transformer", "fsdp"),
        case("mlp", "tensor_parallel"),
        case("transformer", "tensor_parallel"),
        SEQUENCE,
        case("llama", "tensor_parallel"),
        case("mlp", "pipeline_parallel", schedule="gpipe", microbatches=4),
        case("transformer", "pipeline_parallel", schedule="1f1b", microbatches=4),
        case("mlp", "pipeline_parallel", schedule="interleaved", microbatches=2),
    ],
    4: [
        case("transformer", "fsdp"),
        case("transformer", "hsdp"),
        SEQUENCE,
        case("mlp", "hybrid"),
        case("transformer", "hybrid", mesh={"dp_replicate": 2, "tp": 2}),
        case("mlp", "pipeline_parallel", microbatches=8),
        case("transformer", "hybrid", mesh={"pp": 2, "dp_shard": 2}, schedule="gpipe"),
    ],
    8: [
        case("mlp", "fsdp"),
        case("mlp", "hybrid", mesh={"dp_replicate": 2, "dp_shard": 2, "tp": 2}),
        case(
            "transformer",
            "hybrid",
            mesh={"pp": 2, "dp_shard": 2, "tp": 2},
            sequence_parallel=True,
        ),
    ],
}


def furthest(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def differences(mine: Result, judge: Result) -> dict[str, float]:
    """Return how far a rank is from the judge, where it is further than allowed."""
    found = {name: furthest(mine[name], judge[name]) for name in ("losses", "norms")}
    for step, gradients in judge["gradients"].items():
        assert gradients.keys() >= mine["gradients"][step].keys()
        for name, found_here in mine["gradients"][step].items():
            gap = (found_here - gradients[name]).abs().max()
            found[f"{name} in step {step}"] = float(gap)
    return {name: gap for name, gap in found.items() if not gap <= CLOSE}


@pytest.mark.parametrize("world", [2, 4, 8])
def test_ranks_compute_what_one_process_does(
    train: Train, judge: dict[str, Result], world: int
) -> None:
    cases = CASES[world]

    ranks = train(world, cases)

    for mine in ranks:
        for each, result in zip(cases, mine, strict=True):
            assert not differences(result, judge[each["model"]]), each
    for at, each in enumerate(cases):  # a stage of a pipeline has some of the layers only
        there = {name for mine in ranks for name in mine[at]["gradients"][0]}
        assert there == judge[each["model"]]["gradients"][0].keys()
