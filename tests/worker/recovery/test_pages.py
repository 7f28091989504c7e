"""A rank's pages are whole whenever its process is killed, and its next life's, nobody else's."""

import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from torchloom.worker.recovery.pages import OwnPages
from torchloom.worker.saving.tree import Unsaveable

pytestmark = pytest.mark.needs("torch")
KILLS = 300


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="loom-test-") as name:
        yield Path(name, "pages")


def own(step: int, width: int = 64) -> dict[str, Any]:
    """Return a state that says in each of its parts of which step it is."""
    buffers = {"mean": torch.full((width,), float(step)), "count": torch.tensor(step)}
    return {
        "buffers": {"model": buffers},
        "shares": {"model": True},
        "position": {"epoch": 0, "at": step, "order": (step, "x" * (step % 7))},
    }


def is_same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)


def test_a_page_comes_back_as_it_was_written(folder: Path) -> None:
    pages = OwnPages(folder, 1)

    for step in range(3):
        pages.write(step, own(step))

    assert pages.steps() == (0, 1, 2)
    assert all(is_same(pages.read(step), own(step)) for step in range(3))
    assert pages.read(3) is None


def test_there_are_pages_of_the_last_three_steps(folder: Path) -> None:
    pages = OwnPages(folder, 1)

    for step in range(8):
        pages.write(step, own(step))

    assert pages.steps() == (5, 6, 7)
    assert pages.read(4) is None


def test_what_is_read_does_not_change_when_the_page_does(folder: Path) -> None:
    pages = OwnPages(folder, 1)
    pages.write(0, own(0))

    kept = pages.read(0)
    pages.write(3, own(3))

    assert is_same(kept, own(0))


def test_a_state_of_another_shape_gets_another_layout_and_older_pages_stay(folder: Path) -> None:
    pages = OwnPages(folder, 1)
    pages.write(0, own(0))
    pages.write(1, own(1, width=50_000))
    pages.write(2, {**own(2), "more": "y" * 100_000})
    pages.write(3, own(3, width=3))

    assert pages.steps() == (1, 2, 3)
    assert is_same(pages.read(1), own(1, width=50_000))
    assert is_same(pages.read(2), {**own(2), "more": "y" * 100_000})
    assert is_same(pages.read(3), own(3, width=3))


def test_a_state_without_tensors_has_a_page(folder: Path) -> None:
    pages = OwnPages(folder, 1)

    pages.write(0, {"loop": 1})

    assert pages.read(0) == {"loop": 1}


def test_pages_are_the_next_lifes(folder: Path) -> None:
    OwnPages(folder, 1).write(4, own(4))

    assert OwnPages(folder, 2).steps() == (4,)
    assert is_same(OwnPages(folder, 2).read(4), own(4))


def test_pages_that_a_life_did_not_write_to_are_the_next_lifes_all_the_same(folder: Path) -> None:
    OwnPages(folder, 1).write(4, own(4))
    OwnPages(folder, 2)

    assert OwnPages(folder, 3).steps() == (4,)


@pytest.mark.parametrize("life", [3, 0, 9])
def test_no_other_life_finds_them(folder: Path, life: int) -> None:
    OwnPages(folder, 1).write(4, own(4))

    assert OwnPages(folder, life).steps() == ()
    assert OwnPages(folder, life).read(4) is None
    assert OwnPages(folder, 2).steps() == ()


def test_pages_of_undone_steps_are_dropped(folder: Path) -> None:
    pages = OwnPages(folder, 1)
    for step in (4, 5, 6):
        pages.write(step, own(step))

    pages.drop_after(4)

    assert pages.steps() == (4,)
    assert (pages.read(5), pages.read(6)) == (None, None)
    pages.write(5, own(5))
    assert pages.steps() == (4, 5)


@pytest.mark.parametrize("place", [0, 9, 20, 45, 70, 130, 300])
def test_a_damaged_page_is_none(folder: Path, place: int) -> None:
    pages = OwnPages(folder, 1)
    for step in (3, 4):
        pages.write(step, own(step))

    with open(folder / "slot-0", "r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 4]))

    assert pages.steps() == (4,)
    assert pages.read(3) is None


def test_a_page_cut_short_is_none(folder: Path) -> None:
    OwnPages(folder, 1).write(3, own(3))
    os.truncate(folder / "slot-0", 90)

    assert OwnPages(folder, 2).steps() == ()


def test_what_cannot_be_carried_is_named_and_older_pages_stay(folder: Path) -> None:
    pages = OwnPages(folder, 1)
    pages.write(3, own(3))

    with pytest.raises(Unsaveable, match=r"tracked\.mine"):
        pages.write(6, {"tracked": {"mine": object()}})

    assert pages.steps() == (3,)


@pytest.mark.needs("mount")
@pytest.mark.process
def test_no_room_is_an_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=64k", "loom-test", str(small)]
    subprocess.run(words, check=True)
    try:
        pages = OwnPages(small / "pages", 1)
        pages.write(0, own(0))
        with pytest.raises(OSError, match="No space left"):
            pages.write(1, own(1, width=100_000))

        assert pages.steps() == (0,)
        pages.close()
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.process
def test_a_process_that_is_killed_leaves_old_pages_or_new_ones_never_a_mix(folder: Path) -> None:
    chance = random.Random(7)
    begin, torn = 0, 0

    for life in range(1, KILLS + 1):
        _write_until_killed(folder, life, begin, chance.uniform(0, 0.003))
        pages = OwnPages(folder, life + 1)
        steps = pages.steps()

        torn += len(steps) < 3
        assert all(is_same(pages.read(step), own(step, _width(step))) for step in steps)
        assert len(steps) >= 2
        assert steps == tuple(range(steps[0], steps[-1] + 1))
        begin = steps[-1] + 1
    assert torn > 0  # else nothing was killed in the midst of one


def _width(step: int) -> int:
    return 20_000 + step // 100 % 2


def _write_until_killed(folder: Path, life: int, begin: int, seconds: float) -> None:
    """Write page after page in a fork that is killed after so long, at any place."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        pages = OwnPages(folder, life)
        states = [own(step, _width(step)) for step in range(begin, begin + 40)]
        for step in range(begin, begin + 3):
            pages.write(step, states[step - begin])
        os.write(tell, b"!")
        step = begin + 3
        while True:
            state = states[step - begin] if step < begin + 40 else own(step, _width(step))
            pages.write(step, state)
            step += 1
    os.read(ready, 1)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(ready)
    os.close(tell)
