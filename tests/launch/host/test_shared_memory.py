"""What a job has in memory on a node."""

import stat
from pathlib import Path

import pytest

from torchloom.launch.host import shared_memory


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


def test_without_room_there_is_no_page(job: str) -> None:
    assert shared_memory.make_page(job * 99, "trainer-0-0-0") == ""  # no name is so long


@pytest.mark.parametrize(("last", "after"), [("1", "2"), ("2", "2"), ("0", "0"), ("none", "none")])
def test_what_a_rank_left_is_handed_to_the_very_next_life(job: str, last: str, after: str) -> None:
    mark = shared_memory.folder(job) / "pages" / "train-a0-r3" / "life"
    assert shared_memory.make(job) is not None
    mark.parent.mkdir(parents=True)
    mark.write_text(last)

    shared_memory.hand_on(job, "train-a0-r3", 2)
    shared_memory.hand_on(job, "train-a0-r4", 2)  # it has left nothing

    assert mark.read_text() == after
    assert [path.name for path in mark.parent.parent.rglob("*")] == ["train-a0-r3", "life"]
