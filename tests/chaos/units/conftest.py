"""A job on disk that was struck once; and jobs whose ranks are processes that do nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ...cli.conftest import _until as _until
from ...cli.conftest import ended, loom, on_terminal, script, state
from .staged import Stage
from .standins import StandIns

__all__ = ["ended", "loom", "on_terminal", "script", "state"]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """Give the folders of a job in which nothing is wrong."""
    return Stage(tmp_path)


@pytest.fixture
def standins(state: Path) -> Iterator[Callable[..., StandIns]]:
    """Make jobs of stand-ins; all are ended after the test."""
    made: list[StandIns] = []

    def make(ranks: int = 0, **more: str) -> StandIns:
        made.append(StandIns(**more))
        for rank in range(ranks):
            made[-1].start(rank)
        return made[-1]

    yield make
    for one in made:
        one.close()
