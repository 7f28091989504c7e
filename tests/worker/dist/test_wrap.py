"""Wrapped models learn what an unwrapped one learns from all ranks' data; sharded ones shard."""

from typing import Any

import pytest
import torch

from torchloom.worker import dist
from torchloom.worker.dist.parallelism import BadDtype, floating

STEP = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(6, 8)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
        self.last = torch.nn.Linear(8, 3)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.last(x)

def batch(rank):
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(rank))

def step(model, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
"""
WRAPPED = (
    STEP
    + """
from torch.distributed.tensor import DTensor
rank = dist.setup_torch()
model = dist.wrap_model(Net(), {options})
step(model, batch(rank))
sharded = [type(p).__name__ for p in model.parameters()]
rows = [p.to_local().shape[0] for p in model.parameters() if isinstance(p, DTensor)]
whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
units = sum(hasattr(m, "unshard") for m in model.modules())
tell([sorted(set(sharded)), rows, units, [p.tolist() for p in whole]])
dist.cleanup()
"""
)


def unwrapped(size: int) -> list[Any]:
    space: dict[str, Any] = {"torch": torch}
    exec(STEP, space)  # noqa: S102 - the very lines that the ranks run
    net = space["Net"]()
    space["step"](net, torch.cat([space["batch"](rank) for rank in range(size)]))
    return [parameter.tolist() for parameter in net.parameters()]


def close(found: list[Any], wanted: list[Any]) -> bool:
    pairs = zip(found, wanted, strict=True)
    return all(torch.allclose(torch.tensor(a), torch.tensor(b), atol=1e-6) for a, b in pairs)


@pytest.mark.process
def test_sharded_ranks_hold_a_part_each_and_learn_what_the_whole_learns(ranks: Any) -> None:
    told = ranks.group(WRAPPED.replace("{options}", "dtype='float32'"), 2)

    for kinds, rows, units, parameters in told:
        assert (kinds, units) == (["DTensor"], 3)  # two layers of the list, and the model
        assert close(parameters, unwrapped(2))
        assert len(rows) == 8
    halves = [4, 4, 4, 4, 4, 4]
    assert [rows for _, rows, _, _ in told] == [[*halves, 2, 2], [*halves, 1, 1]]


@pytest.mark.process
def test_replicated_ranks_hold_everything_and_learn_what_the_whole_learns(ranks: Any) -> None:
    told = ranks.group(WRAPPED.replace("{options}", "use_fsdp=False"), 2)

    for kinds, rows, units, parameters in told:
        assert (kinds, rows, units) == (["Parameter"], [], 0)
        assert close(parameters, unwrapped(2))


@pytest.mark.process
def test_a_mesh_with_tensor_groups_shards_over_the_data_ranks_alone(ranks: Any) -> None:
    script = """
dist.setup_torch(tensor_parallel_size=2)
model = dist.wrap_model(torch.nn.Linear(4, 8), dtype="float32")
tell([p.to_local().shape[0] for p in model.parameters()])
dist.cleanup()
"""

    assert ranks.group(script, 4) == [[4, 4]] * 4


@pytest.mark.parametrize("use_fsdp", [True, False])
def test_a_process_alone_gets_its_model_back(use_fsdp: bool) -> None:
    model = torch.nn.Linear(2, 2)

    assert dist.wrap_model(model, use_fsdp) is model


@pytest.mark.parametrize(
    ("word", "expected"),
    [("bf16", torch.bfloat16), ("float32", torch.float32), (torch.float16, torch.float16)],
)
def test_floating_point_types_have_names(word: Any, expected: Any) -> None:
    assert floating(word) == expected


@pytest.mark.parametrize("word", ["int32", "nonsense", "nn", torch.int8])
def test_what_is_no_floating_point_type_is_refused(word: Any) -> None:
    with pytest.raises(BadDtype, match="try bfloat16 or float32"):
        floating(word)
