"""The fixtures: one cluster for all tests of a run, as new for each of them."""

from collections.abc import Iterator

import pytest

from .cluster import Cluster

NEEDS = {
    "cluster": ("netns",),
    "ssh_cluster": ("netns", "ssh"),
    "slurm_cluster": ("netns", "slurmd"),
    "pbs_cluster": ("netns",),
    "lsf_cluster": ("netns",),
}  # what a test that asks for the fixture needs of the machine


@pytest.fixture(scope="session")
def hosts_of_the_run() -> Iterator[Cluster]:
    """Keep four hosts up; tests ask for `cluster`, `ssh_cluster` or `slurm_cluster` instead."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(hosts_of_the_run: Cluster) -> Iterator[Cluster]:
    """Give four bare hosts; afterwards whatever the test started or broke is put right."""
    yield hosts_of_the_run
    hosts_of_the_run.reset()


@pytest.fixture
def ssh_cluster(cluster: Cluster) -> Cluster:
    """Give hosts that reach each other by a plain `ssh n2`."""
    return cluster.with_ssh()


@pytest.fixture
def slurm_cluster(cluster: Cluster) -> Cluster:
    """Give hosts that are the idle nodes of a Slurm."""
    return cluster.with_slurm()


@pytest.fixture
def pbs_cluster(cluster: Cluster) -> Cluster:
    """Give hosts that are the execution hosts of a fake PBS."""
    cluster.with_pbs()
    return cluster


@pytest.fixture
def lsf_cluster(cluster: Cluster) -> Cluster:
    """Give hosts that are the server hosts of a fake LSF."""
    cluster.with_lsf()
    return cluster
