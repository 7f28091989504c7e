"""Groups of ranks that train by a strategy, and one process that trains the same in plain torch."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ...harness.forked_ranks import Zygote, free_port, seats, warm_zygote

SCRIPTS = Path(__file__).parent / "scripts"
KINDS = ("mlp", "transformer", "llama")

Result = dict[str, Any]  # losses, gradients, norms, held
Train = Callable[[int, list[dict[str, Any]]], list[list[Result]]]


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with warm_zygote(Path(__file__).with_name("warm.py")) as ready:
        yield ready


@pytest.fixture(scope="session")
def judge(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Return what one process computes in plain torch, by model."""
    import torch

    folder = tmp_path_factory.mktemp("judge")
    env = {"OUT": str(folder), "SCRIPTS": str(SCRIPTS), "KINDS": json.dumps(KINDS)}
    ended = zygote.run((SCRIPTS / "judge.py").read_text(), [env], install=False)
    assert ended[0][0] == 0, ended
    found: dict[str, Result] = torch.load(folder / "judge.pt")
    return found


@pytest.fixture
def train(zygote: Zygote, tmp_path: Path) -> Train:
    """Train each case on this many ranks; return each rank's results."""
    import torch

    def run(world: int, cases: list[dict[str, Any]]) -> list[list[Result]]:
        env = {"OUT": str(tmp_path), "SCRIPTS": str(SCRIPTS), "CASES": json.dumps(cases)}
        script = (SCRIPTS / "cases.py").read_text()
        ended = zygote.run(script, seats(world, free_port(), **env), install=False)
        assert [code for code, _ in ended] == [0] * world, ended
        return [torch.load(tmp_path / f"rank-{rank}.pt") for rank in range(world)]

    return run
