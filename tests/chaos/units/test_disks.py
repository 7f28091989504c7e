"""Strikes at disks: a small tmpfs is full for a while, anything else is refused."""

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchloom.chaos.faults import actions
from torchloom.chaos.faults.actions import NotPossible
from torchloom.chaos.plan import Fault
from torchloom.chaos.record import FaultLog, Strike, read

from .standins import StandIns

Make = Callable[..., StandIns]
FULL = Fault(0.0, "disk-full")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 8 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=8m", "loom-test", str(folder)]
    subprocess.run(words, check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.needs("mount")
def test_a_small_disk_is_filled_and_freed(small: Path, standins: Make) -> None:
    root = small / "train-a" / "checkpoints"  # nothing was saved yet
    job = standins(ranks=1, checkpoints=str(root))
    actions.check([FULL], job.victim)
    aim = actions.aim(FULL, job.victim)
    assert aim is not None
    assert aim.undo is not None

    told = actions.strike(Strike(0, "disk-full", 0.0), aim)
    with pytest.raises(OSError, match="No space left"):
        (small / "shard").write_bytes(b"x")
    again = actions.aim(FULL, job.victim)
    for _ in range(2):
        actions.undo(aim.undo)
    (small / "shard").write_bytes(b"x" * (7 << 20))

    assert told.outcome == "struck"
    assert again is None
    assert sorted(path.name for path in small.iterdir()) == ["shard"]


@pytest.mark.needs("mount")
def test_a_disk_that_is_larger_than_the_plan_allows_is_refused(small: Path, standins: Make) -> None:
    job = standins(ranks=1, checkpoints=str(small))

    with pytest.raises(NotPossible, match="a tmpfs of 8 MB; disk-full fills at most 4 MB"):
        actions.check([Fault(0.0, "disk-full", mb=4)], job.victim)


@pytest.mark.parametrize(
    ("root", "why"),
    [
        ("/proc/self", "/proc/self is on proc; disk-full fills only a small tmpfs"),
        ("s3://bucket/x", "train-a has no checkpoints on a local disk; disk-full fills only"),
        ("", "train-a has no checkpoints on a local disk; disk-full fills only"),
    ],
)
def test_any_other_disk_is_refused(root: str, why: str, standins: Make) -> None:
    job = standins(checkpoints=root)

    with pytest.raises(NotPossible) as refused:
        actions.check([FULL], job.victim)

    assert str(refused.value).startswith(why)


@pytest.mark.needs("mount")
def test_what_is_told_while_the_disk_is_full_is_written_when_it_is_not(small: Path) -> None:
    log = FaultLog(small / "chaos.jsonl")
    head = {"chaos": "c", "job": "j", "seed": 1, "began": 1.0, "faults": 2}
    log.path.write_text(json.dumps(head) + "\n")
    fill = small / "fill"
    with contextlib.suppress(OSError), fill.open("wb", buffering=0) as file:
        while file.write(b"\0" * 4096):
            pass
    strikes = [Strike(n, "kill", float(n), why="x" * 8000) for n in range(2)]

    log.note(strikes[0])
    during = read(log.path).strikes
    fill.unlink()
    log.note(strikes[1])

    assert during == ()
    assert read(log.path).strikes == tuple(strikes)
