"""A plane that is started in the background is nobody's child, and one is enough."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.client import plane as client
from torchloom.client.errors import PlaneNotStarted
from torchloom.errors import UserError

from ..harness.home import children, until

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def no_plane_afterwards(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("LOOM_NATS", raising=False)
    monkeypatch.delenv("torchLoom_ADDR", raising=False)
    yield
    client.leave()


def stat(pid: int) -> list[str]:
    """Return a process' state, parent, group and session, as the kernel has them."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]


def environ(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_text().split("\0")


def test_a_plane_is_started_apart_from_whoever_wanted_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOM_JOB", "job-1")
    before = children()

    found = client.find_or_start(only="nats") or {}

    _, parent, _, session = stat(found["pid"])
    assert int(parent) != os.getpid()
    assert int(session) == found["pid"]
    assert "LOOM_AGENT_OF=plane" in environ(found["pid"])  # no keeper takes it for a rank's
    assert "LOOM_JOB=job-1" not in environ(found["pid"])
    assert children() <= before
    assert found["pinned"] is False


def test_whoever_does_not_wait_finds_it_a_little_later(home: Path) -> None:
    assert client.find_or_start(wait=False, only="nats") is None

    until(client.find)

    first = client.find() or {}
    assert (client.find_or_start(only="nats") or {})["pid"] == first["pid"]


def test_a_plane_that_is_found_can_be_pinned_and_given_more(home: Path) -> None:
    client.find_or_start(only="nats")

    found = client.find_or_start(only="nats", pinned=True) or {}

    assert found["pinned"] is True


def test_a_plane_that_cannot_start_says_why(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_NATS", "localhost:4222")

    with pytest.raises(UserError, match="'localhost:4222' is not a NATS address; write nats://"):
        client.find_or_start(only="nats")


def test_an_interpreter_that_dies_at_once_is_told_with_its_log(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")

    with pytest.raises(PlaneNotStarted) as raised:
        client.find_or_start(only="nats")

    assert str(raised.value) == f"the plane ended at once; see {client.log()}"
