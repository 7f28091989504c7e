"""Ready-made trainings by each strategy end where the same training on one worker ends."""

import math
from pathlib import Path
from typing import Any

import pytest

from .conftest import Train
from .jobs import words
from .test_train import numbers

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
WORLD, BATCH = 4, 16
MLP = {"hidden": 32, "layers": 3, "clip": 0.5, "lr": 0.01, "epochs": 2}
TRANSFORMER = {"context": 16, "width": 32, "layers": 2, "clip": 0.5, "lr": 0.01}


def job(kind: str, text: Path, samples: int, **more: Any) -> str:
    """Return a job whose steps take this many samples on each worker; no step takes fewer.

    Of the samples to evaluate on, one of four workers has a batch more than the others.
    """
    if kind == "mlp":
        return words({**MLP, "batch_size": samples}, seed=3, dataset="synthetic:657", **more)
    fields = {"model": "transformer", "dataset": f"text:{text}", "seed": 3}
    return words({**TRANSFORMER, "batch_size": samples}, **fields, **more)


@pytest.mark.parametrize(
    ("kind", "strategy", "shares", "more"),
    [
        ("mlp", "fsdp", 4, {}),
        ("transformer", "hsdp", 4, {}),
        ("mlp", "tensor_parallel", 1, {}),
        ("transformer", "hybrid", 2, {"sequence_parallel": True}),
        ("mlp", "pipeline_parallel", 1, {"schedule": "gpipe", "microbatches": 8}),
        ("transformer", "hybrid", 2, {"mesh": {"pp": 2, "dp_shard": 2}}),
    ],
)
def test_four_workers_end_where_one_does(
    train: Train, tmp_path: Path, kind: str, strategy: str, shares: int, more: dict[str, Any]
) -> None:
    text = tmp_path / "song.txt"
    text.write_text(("row row row your boat gently down the stream\n" * 40)[:1697])
    parallel = {"distributed": {"strategy": strategy, **more}, "resources": {"workers": WORLD}}

    ((code, alone),) = train(job(kind, text, BATCH))
    ended = train(job(kind, text, BATCH // shares, **parallel), WORLD)

    assert code == 0, alone
    assert [code for code, _ in ended] == [0] * WORLD, ended
    line = ended[0][1]
    assert f", {WORLD} workers, " in line
    assert line.count("\n") == 1, line  # no warning beside it
    mine, judge = numbers(line), numbers(alone)
    assert mine.keys() == judge.keys()
    for name in ("loss", "eval/loss", "eval/accuracy"):  # printed with four digits
        assert math.isclose(mine[name], judge[name], rel_tol=1e-3), (name, mine, judge)
