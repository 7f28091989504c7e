"""What a generation goes on from is known at once; what nobody committed is deleted beside that."""

import threading
from pathlib import Path
from typing import Any

import pytest

from torchloom.checkpoint import Draft, LocalStorage, shard_name
from torchloom.launch.records.request import LaunchRequest
from torchloom.launch.supervisor.recovery import NOTHING, SavedCheckpoints

from ...harness.home import until

DRAFT = Draft(200, 0, 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder in which a generation that is over has begun to save."""
    LocalStorage(str(tmp_path)).write_shard(DRAFT, shard_name(0), [memoryview(b"x")])
    return tmp_path


def saved(root: Path, *nodes: str) -> SavedCheckpoints:
    def note(event: str, **facts: Any) -> None:
        pass

    request = LaunchRequest("a", "a", "s", "/", "/logs", (), nodes=nodes, checkpoints=str(root))
    return SavedCheckpoints(request, note)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Have whoever deletes drafts wait until the test opens the gate."""
    gate, real = threading.Event(), LocalStorage.clear_drafts

    def clear(self: LocalStorage, below: int) -> list[str]:
        gate.wait()
        return real(self, below)

    monkeypatch.setattr(LocalStorage, "clear_drafts", clear)
    return gate


def test_on_one_host_ranks_do_not_wait_for_drafts_to_be_deleted(
    root: Path, gate: threading.Event
) -> None:
    place = saved(root).resume_point(1, "why")
    is_there = (root / DRAFT.name).exists()
    gate.set()

    until(lambda: not (root / DRAFT.name).exists())
    assert (place, is_there) == (NOTHING, True)


def test_where_hosts_look_for_each_others_marks_drafts_and_marks_are_gone_first(root: Path) -> None:
    LocalStorage(str(root)).mark("old")

    assert saved(root, "n1", "n2").resume_point(1, "why") == NOTHING

    assert {path.name for path in root.iterdir()} == {".lock", "fence"}


def test_what_it_takes_to_go_on_can_be_had_before(tmp_path: Path) -> None:
    saved(tmp_path).prepare()
    saved(tmp_path / "nothing").prepare()

    assert list(tmp_path.iterdir()) == []
