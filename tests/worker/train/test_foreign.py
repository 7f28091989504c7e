"""What frameworks other than torch are told of their peers, and the steps that they take."""

import json
from pathlib import Path
from typing import Any

import pytest

from ...harness.forked_ranks import Zygote, free_port, seats

pytestmark = pytest.mark.needs("torch")
WORLD = 3
MEET = """
import json, os
from pathlib import Path
from torchloom.worker import dist
from torchloom.worker.train.foreign import addresses_of, tensorflow_cluster
rank = dist.setup_torch(backend="gloo")
found = tensorflow_cluster(addresses_of(rank, dist.get_world_size()), rank)
Path(os.environ["OUT"], f"rank-{rank}").write_text(json.dumps(found))
dist.cleanup()
"""


@pytest.mark.process
def test_tensorflow_finds_a_cluster_of_all_ranks_in_the_environment(
    zygote: Zygote, tmp_path: Path
) -> None:
    ended = zygote.run(MEET, seats(WORLD, free_port(), OUT=str(tmp_path)), install=False)

    assert [code for code, _ in ended] == [0] * WORLD, ended
    told = [json.loads((tmp_path / f"rank-{rank}").read_text()) for rank in range(WORLD)]
    assert [list(each) for each in told] == [["TF_CONFIG"]] * WORLD
    configs = [json.loads(each["TF_CONFIG"]) for each in told]
    clusters = [each["cluster"] for each in configs]
    assert clusters == [clusters[0]] * WORLD
    (workers,) = clusters[0].values()
    assert list(clusters[0]) == ["worker"]
    assert len(set(workers)) == WORLD
    assert all(each.startswith("127.0.0.1:") for each in workers)
    assert [each["task"] for each in configs] == [
        {"type": "worker", "index": rank} for rank in range(WORLD)
    ]


@pytest.mark.parametrize(
    ("optimizer", "more"),
    [("sgd", {"momentum": 0.9}), ("sgd", {}), ("adam", {}), ("adamw", {})],
)
def test_a_weight_takes_the_steps_of_torchs_optimizer(optimizer: str, more: dict[str, Any]) -> None:
    import torch

    from torchloom.worker.train.foreign import Rates, moved

    kinds: dict[str, Any] = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
    }
    judge = torch.nn.Parameter(torch.linspace(-1, 1, 7))
    own = judge.detach().clone()
    plain = kinds[optimizer]([judge], lr=0.1, weight_decay=0.03, **more)
    names = ["momentum_buffer"] if optimizer == "sgd" else ["exp_avg", "exp_avg_sq"]
    moments = {name: torch.zeros_like(own) for name in names}

    for step in range(1, 6):
        judge.grad = torch.sin(judge.detach() * step)
        rates = Rates(0.1, 0.03, more.get("momentum", 0.0), float("inf"), float(step))
        own, moments = moved(optimizer, own, judge.grad.clone(), moments, rates)
        plain.step()

    assert torch.allclose(own, judge.detach(), atol=1e-6)
