"""Loss and accuracy of what is held out, shared unevenly by ranks."""

import json

import pytest

from ...harness.forked_ranks import Zygote, free_port, seats

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
SHARED = """
import json, torch
from torchloom.specs.jobspec_shape import job_from_dict
from torchloom.worker.train.adapter import WorkerPlan as Plan
from torchloom.worker.train.pytorch import PyTorchAdapter
from torchloom.worker.train.pytorch import evaluate

spec = job_from_dict({"name": "x", "model": "mlp", "dataset": "synthetic:%d",
                      "hyperparameters": {"batch_size": 4, "eval_fraction": 0.5}})
adapter = PyTorchAdapter()
dist = adapter.init_distributed(Plan.of(spec))
state = adapter.begin(spec, adapter.build_model(spec), 1)
share = adapter.build_evaluation(spec, dist.rank, dist.world_size)
found = evaluate(state, share, dist)
"""
TELL = """
print(json.dumps([found, len(share.dataset), torch.initial_seed()]))
from torchloom.worker.dist import cleanup
cleanup()
"""
PLAIN = """
samples, held = adapter._samples(spec), adapter._parts(spec)[1].indices
x, y = samples.take(held)
with torch.no_grad():
    out = state.module(x)
    loss = torch.nn.functional.cross_entropy(out.double(), y)
found = {"eval/loss": float(loss), "eval/accuracy": float((out.argmax(1) == y).double().mean())}
"""


@pytest.mark.parametrize("count", [46, 4])  # of 23 ranks have 8, 8 and 7; of 2 one has none
def test_every_held_out_sample_counts_once_however_ranks_share_them(
    zygote: Zygote, count: int
) -> None:
    ranks = zygote.run(SHARED % count + TELL, seats(3, free_port()), install=False)
    plain = zygote.run(SHARED % count + PLAIN + TELL, [{}], install=False)

    assert [code for code, _ in [*ranks, *plain]] == [0] * 4, ranks + plain
    told = [json.loads(text) for _, text in ranks]
    expected, whole, _ = json.loads(plain[0][1])
    assert [found for found, _, _ in told] == [pytest.approx(expected, rel=1e-5)] * 3
    assert sum(size for _, size, _ in told) == whole == count // 2


def test_ranks_draw_each_for_itself_and_all_again_in_another_run(zygote: Zygote) -> None:
    first, again = (
        [json.loads(text)[2] for _, text in zygote.run(SHARED % 9 + TELL, told, install=False)]
        for told in (seats(2, free_port()), seats(2, free_port()))
    )

    assert first == again
    assert len(set(first)) == 2
