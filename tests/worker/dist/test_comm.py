"""What ranks say to each other is what plain torch computes from all their tensors at once."""

import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch

from torchloom.worker import dist
from torchloom.worker.dist.comm import BadCollective
from torchloom.worker.dist.place import ALONE
from torchloom.worker.dist.stores import alone, start

# Every rank makes its own tensor from its number, so that a test can make all of them.
MINE = """
def mine(rank, size):
    rows = torch.arange(size * 6, dtype=torch.float32).reshape(size * 2, 3)
    return (rows + 1) * (rank + 1)
"""
EVERYTHING = (
    MINE
    + """
rank = dist.setup_torch()
size = dist.get_world_size()
say, x = dist.collectives(), mine(rank, size)
before = x.clone()
told = {
    "kind": type(say).__name__,
    "numbers": [say.rank, say.size],
    "reduce": {op: say.allreduce(x, op).tolist() for op in ("sum", "mean", "min", "max", "prod")},
    "whole": say.allreduce(torch.tensor(rank + 1)).tolist(),
    "gather": [each.tolist() for each in say.allgather(x)],
    "scatter": {op: say.reduce_scatter(x, op).tolist() for op in ("sum", "mean", "max")},
    "broadcast": say.broadcast(x, root=1).tolist(),
    "turned": say.broadcast(x.t(), root=1).tolist(),
}
got = torch.zeros_like(x)
if rank % 2:
    say.recv(got, source=rank - 1)
    say.send(x, to=rank - 1)
else:
    say.send(x, to=rank + 1)
    say.recv(got, source=rank + 1)
told["swap"] = got.tolist()
say.barrier()
told["untouched"] = bool(torch.equal(x, before))
told["object"] = dist.broadcast({"from": rank, "all": [1, (2,)]}, root=size - 1)
told["number"] = [dist.all_reduce(rank + 1), dist.all_reduce(0.5, "mean")]
dist.barrier()
tell(told)
dist.cleanup()
"""
)


def mine(rank: int, size: int) -> Any:
    space: dict[str, Any] = {"torch": torch}
    exec(MINE, space)  # noqa: S102 - the very lines that the ranks run
    return space["mine"](rank, size)


def expected(rank: int, size: int) -> dict[str, Any]:
    everyone = torch.stack([mine(each, size) for each in range(size)])
    share = slice(rank * 2, rank * 2 + 2)
    reduced = {
        "sum": everyone.sum(0),
        "mean": everyone.mean(0),
        "min": everyone.amin(0),
        "max": everyone.amax(0),
        "prod": everyone.prod(0),
    }
    return {
        "kind": "TorchCollectives",
        "numbers": [rank, size],
        "reduce": {op: value.tolist() for op, value in reduced.items()},
        "whole": sum(range(1, size + 1)),
        "gather": everyone.tolist(),
        "scatter": {op: reduced[op][share].tolist() for op in ("sum", "mean", "max")},
        "broadcast": mine(1, size).tolist(),
        "turned": mine(1, size).t().tolist(),
        "swap": mine(rank ^ 1, size).tolist(),
        "untouched": True,
        "object": {"from": size - 1, "all": [1, [2]]},
        "number": [sum(range(1, size + 1)), 0.5],
    }


@pytest.mark.process
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_hear_what_plain_torch_computes(size: int, ranks: Any) -> None:
    told = ranks.group(EVERYTHING, size)

    assert told == [expected(rank, size) for rank in range(size)]


AVERAGES = """
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
rank = dist.setup_torch()
say = dist.comm.collectives()

def layer():
    return nn.Linear(4, 4, bias=False).to(dist.get_torch_device())

def slope(model):
    model(torch.full((1, 4), rank + 1.0, device=dist.get_torch_device())).sum().backward()
    (weight,) = model.parameters()
    return getattr(weight.grad, "full_tensor", lambda: weight.grad)()[0, 0].item()

tell({
    "backend": say.backend,
    "mean": say.allreduce(torch.tensor([rank + 1.0]), "mean").item(),
    "whole": say.allreduce(torch.tensor([rank + 1]), "mean").item(),
    "share": say.reduce_scatter(torch.full((2,), rank + 1.0), "mean").item(),
    "ddp": slope(nn.parallel.DistributedDataParallel(layer())),
    "fsdp": slope(fully_shard(layer())),
})
dist.cleanup()
"""


@pytest.mark.process
@pytest.mark.parametrize("backend", ["gloo", "nccl", "mpi"])
def test_an_average_is_no_sum_on_any_backend(backend: str, ranks: Any) -> None:
    if not torch.distributed.is_backend_available(backend):
        pytest.skip(f"this torch has no {backend}")
    if backend == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("nccl takes a GPU for each of two ranks")
    chosen = {"TORCH_BACKEND": backend, "LOOM_NO_FALLBACK": "1"}

    if backend == "mpi":
        words = [f"{name}={value}" for name, value in chosen.items()]
        told = ranks.by(["mpirun", "-n", "2", "env", *words, sys.executable], AVERAGES, 2)
    else:
        told = ranks.group(AVERAGES, 2, **chosen)

    mean = {name: 1.5 for name in ("mean", "whole", "share", "ddp", "fsdp")}
    assert told == [{"backend": backend, **mean}] * 2


@pytest.fixture
def group_of_one() -> Iterator[None]:
    start("gloo", alone(), ALONE, timedelta(seconds=30))
    yield
    dist.cleanup()


def said(say: dist.Collectives) -> dict[str, Any]:
    x = mine(0, 1)
    results = {
        **{f"allreduce {op}": say.allreduce(x, op) for op in ("sum", "mean", "min", "max", "prod")},
        "scatter": say.reduce_scatter(x, "mean"),
        "broadcast": say.broadcast(x, 0),
    }
    (gathered,) = say.allgather(x)
    results["gather"] = gathered
    say.barrier()
    kept = [value.data_ptr() != x.data_ptr() for value in results.values()]
    return {name: value.tolist() for name, value in results.items()} | {"copies": kept}


def test_the_null_object_says_what_a_group_of_one_says(group_of_one: None) -> None:
    real = dist.collectives()

    assert isinstance(real, dist.TorchCollectives)
    assert said(dist.Alone()) == said(real)
    assert (dist.Alone.rank, dist.Alone.size) == (real.rank, real.size)
    assert (dist.Alone.backend, real.backend) == ("single", "gloo")


def refusals(say: dist.Collectives) -> list[str]:
    x = torch.ones(3)
    calls = [
        lambda: say.send(x, 1),
        lambda: say.recv(x, 0),
        lambda: say.broadcast(x, 1),
        lambda: say.allreduce(x, "median"),  # type: ignore[arg-type]
        lambda: say.reduce_scatter(torch.tensor(1.0)),
    ]
    messages = []
    for call in calls:
        with pytest.raises(BadCollective) as refused:
            call()
        messages.append(str(refused.value))
    return messages


def test_both_refuse_the_same_things_in_the_same_words(group_of_one: None) -> None:
    assert refusals(dist.Alone()) == refusals(dist.collectives())
    assert refusals(dist.Alone()) == [
        "a single process cannot send to, or receive from, other ranks",
        "a single process cannot send to, or receive from, other ranks",
        "no rank 1 in a world of 1",
        "no reduction 'median'; one of sum, min, max, prod, mean",
        "the first dimension of () cannot be shared among 1 ranks",
    ]


def test_a_process_alone_speaks_to_itself() -> None:
    thing = {"a": 1}

    assert isinstance(dist.collectives(), dist.Alone)
    assert dist.broadcast(thing) is thing
    assert (dist.all_reduce(3), dist.all_reduce(1, "mean")) == (3, 1.0)
    assert torch.equal(dist.all_reduce(torch.ones(2)), torch.ones(2))
    dist.barrier()


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: dist.all_reduce("x"), "all_reduce takes numbers and tensors, not str"),
        (lambda: dist.barrier(implementation="mpi"), "only torch is supported"),
        (lambda: dist.broadcast(1, root=3), "no rank 3 in a world of 1"),
    ],
)
def test_what_cannot_be_meant_is_refused(call: Any, why: str) -> None:
    with pytest.raises(BadCollective, match=why):
        call()
