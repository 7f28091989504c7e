from collections.abc import Iterator
from pathlib import Path

import pytest

from ...harness.cluster import Cluster
from ...harness.home import home
from ...harness.host_launches import Launches

__all__ = ["home"]


@pytest.fixture
def launches(ssh_cluster: Cluster, home: Path, tmp_path: Path) -> Iterator[Launches]:
    """Give launches over hosts that reach each other by ssh; nothing may be left of them."""
    launches = Launches(ssh_cluster, home, tmp_path)
    yield launches
    try:
        launches.nothing_left()
    finally:
        launches.forget()


@pytest.fixture
def in_slurm(slurm_cluster: Cluster, launches: Launches) -> Launches:
    """Give launches over hosts that are the nodes of a Slurm, too."""
    return launches
