"""Ranks with an agent, for programs in `scripts`; and a plane for jobs with real frameworks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ...control.conftest import database, place, plane, warm
from ...harness.forked_ranks import Zygote, warm_zygote
from ..threadlet.conftest import ranks

__all__ = ["database", "place", "plane", "ranks", "warm"]


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Have the frameworks in memory: each of them takes seconds to import."""
    with warm_zygote(Path(__file__).with_name("warm.py")) as ready:
        yield ready
