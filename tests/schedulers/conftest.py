"""Fixtures of the engines."""

import os
from pathlib import Path

import pytest

from ..harness.cluster import Cluster
from ..harness.home import home

__all__ = ["home"]


@pytest.fixture
def own_tmp(cluster: Cluster) -> None:
    """Give every host, as real ones have it, a /tmp/torchloom-UID of its own."""
    shared = Path(f"/tmp/torchloom-{os.getuid()}")
    shared.mkdir(mode=0o700, exist_ok=True)
    cluster.private(shared)
