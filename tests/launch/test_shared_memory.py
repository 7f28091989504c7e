"""What a job has in memory on a node."""

import stat
from pathlib import Path

import pytest

from torchloom.launch import shared_memory


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setattr(shared_memory, "_SHARED_MEMORY", tmp_path)
    return "train-1"


def test_a_page_is_empty_and_its_owners_alone(job: str) -> None:
    path = Path(shared_memory.make_page(job, "trainer-0-0-0"))

    assert path.read_bytes() == bytes(shared_memory.PAGE_SIZE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_nothing_is_left_of_a_removed_job(job: str, tmp_path: Path) -> None:
    shared_memory.make_page(job, "trainer-0-0-0")

    shared_memory.remove(job)

    assert list(tmp_path.iterdir()) == []


def test_without_room_there_is_no_page(job: str, tmp_path: Path) -> None:
    (tmp_path / shared_memory.folder(job).name).write_text("in the way")

    assert shared_memory.make_page(job, "trainer-0-0-0") == ""
