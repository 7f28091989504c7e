"""One S3 server for all tests of this folder that ask for one."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..harness.s3_server import S3Server, running_s3


@pytest.fixture
def s3_server(resting: S3Server) -> Iterator[S3Server]:
    """Give a running server with a bucket that others have used, too."""
    resting.go_on()
    yield resting
    resting.pause()


@pytest.fixture(scope="session")
def resting() -> Iterator[S3Server]:
    """Keep the server still while nobody asks for it: doing nothing takes it a tenth of a core."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # it syncs a lot
    temporary = tempfile.TemporaryDirectory(dir=memory, prefix="loom-s3-")
    with temporary as folder, running_s3(Path(folder)) as server:
        server.pause()
        yield server
