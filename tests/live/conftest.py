"""A plane for each module, with warm ranks, and what trainings do that nobody touches."""

from collections.abc import Callable

import pytest

from ..control.conftest import database, place, plain, plane, warm
from ..harness import step_records as ledgers
from ..harness.live_training import STEPS, WORLD, Proof
from ..harness.plane_jobs import Plane
from ..launch.over_hosts.conftest import home, launches

__all__ = ["database", "home", "launches", "place", "plain", "plane", "warm"]

Quiet = Callable[[str], list[ledgers.Chain]]


@pytest.fixture(scope="module")
def undisturbed(plane: Plane, warm: None, tmp_path_factory: pytest.TempPathFactory) -> Quiet:
    """Return the bits behind each step of a training that nobody has touched, rank by rank."""
    known: dict[str, list[ledgers.Chain]] = {}

    def chains(model: str) -> list[ledgers.Chain]:
        if model not in known:
            proof = Proof(model, tmp_path_factory.mktemp("quiet") / model, policy="restart", pace=0)
            proof.over()
            known[model] = proof.chains()
            assert [sorted(chain) for chain in known[model]] == [list(range(STEPS))] * WORLD
            ledgers.survivors_survived(proof.ranks(), {})
        return known[model]

    return chains
