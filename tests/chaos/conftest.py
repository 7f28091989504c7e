"""A plane for each module, with warm ranks, and a training that nobody strikes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..control.conftest import database, place, plane, warm
from ..harness.chaos_training import Training
from ..harness.home import processes_of
from ..harness.plane_jobs import Plane, loom
from ..launch.over_hosts.conftest import home, launches

__all__ = ["database", "home", "launches", "place", "plane", "warm"]

Start = Callable[..., Training]
Quiet = Callable[[int, int], Training]


@pytest.fixture
def start(plane: Plane, warm: None, tmp_path: Path) -> Iterator[Start]:
    """Start trainings; what still runs is ended after the test."""
    found: list[Training] = []

    def begin(world: int, steps: int, **more: object) -> Training:
        found.append(Training(tmp_path / f"job-{len(found)}", world, steps, **more))
        return found[-1]

    yield begin
    for one in found:
        if processes_of(one.id):
            loom("stop", "--now", one.id)


@pytest.fixture(scope="module")
def undisturbed(plane: Plane, warm: None, tmp_path_factory: pytest.TempPathFactory) -> Quiet:
    """Return a training of so many ranks and steps that nobody has struck."""
    known: dict[tuple[int, int], Training] = {}

    def quiet(world: int, steps: int) -> Training:
        if (world, steps) not in known:
            one = Training(tmp_path_factory.mktemp("quiet") / "job", world, steps)
            one.ends()
            known[world, steps] = one
        return known[world, steps]

    return quiet
