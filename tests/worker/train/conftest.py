"""Ranks that are forked from a process with torch, and a plane to steer real ones through."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ...control.conftest import database, place, plane  # noqa: F401
from ...harness.forked_ranks import Zygote, free_port, seats, warm_zygote

SCRIPTS = Path(__file__).parent / "scripts"
ENTRY = f"""
import runpy, sys, torch
torch.seed()  # as a fork of a real zygote does: what a job draws is not to come from there
sys.path.insert(0, {str(SCRIPTS)!r})
sys.argv = ["train"]
from torchloom.worker.threadlet.threadlet import current
try:
    runpy.run_module("torchloom.worker.train", run_name="__main__", alter_sys=True)
finally:
    current().close()  # a fork of the tests leaves without
"""

Ended = list[tuple[int, str]]  # the ranks' exit codes, and what they printed
Train = Callable[..., Ended]


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with warm_zygote(Path(__file__).with_name("warm.py")) as ready:
        yield ready


@pytest.fixture
def train(zygote: Zygote, tmp_path: Path) -> Train:
    """Train a job on some ranks, in processes of their own, to its end."""

    def run(told: str, world: int = 1, **env: str) -> Ended:
        out = {"OUT": str(tmp_path), "LOOM_JOB_SPEC": told, "HOME": str(tmp_path), **env}
        return zygote.run(ENTRY, seats(world, free_port(), **out), install=False)

    return run


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Write samples of three classes as arrays; as many as no two workers can share evenly."""
    import numpy

    chance = numpy.random.default_rng(0)
    y = chance.integers(0, 3, 203)
    x = chance.normal(size=(203, 6)) + numpy.eye(3, 6)[y] * 2
    path = tmp_path / "table.npz"
    numpy.savez(path, x=x.astype("float32"), y=y)
    return path


def rows(folder: Path, world: int) -> list[list[Any]]:
    """Return what each rank wrote of its steps, itself; a line being written is left out."""
    texts = [(folder / f"rank-{rank}").read_text() for rank in range(world)]
    return [[json.loads(line) for line in text.split("\n")[:-1]] for text in texts]


def steps(folder: Path, world: int) -> int:
    """Return how many steps all ranks have written down."""
    return min((folder / f"rank-{rank}").read_bytes().count(b"\n") for rank in range(world))
