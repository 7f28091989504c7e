import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchloom.bus.progress_page import (
    MAGIC,
    SIZE,
    VERSION,
    PageReading,
    PageView,
    ProgressPage,
    StepPhase,
)

from ..harness.home import until


def read(path: Path) -> PageReading | None:
    view = PageView.open(path)
    assert view is not None
    try:
        return view.read()
    finally:
        view.close()


def test_a_page_says_what_was_last_written(tmp_path: Path) -> None:
    page = ProgressPage.open(tmp_path / "p")
    page.boundary(step=7, applied=6, lasted_ns=5_000_000, now_ns=100)
    page.boundary(step=8, applied=7, lasted_ns=4_000_000, now_ns=200)
    page.enter(StepPhase.EVALUATION, now_ns=1_000_000_200)

    found = read(tmp_path / "p")

    assert found == PageReading(StepPhase.EVALUATION, 8, 7, 1_000_000_200, 4_000_000, os.getpid())
    assert found.silent_for(3_500_000_200) == 2.5


def test_the_layout_is_the_agreed_one_byte_for_byte(tmp_path: Path) -> None:
    page = ProgressPage.open(tmp_path / "p")
    page.boundary(step=0x1122, applied=0x33, lasted_ns=0x44, now_ns=0x55)
    page.enter(StepPhase.CHECKPOINT, now_ns=0x66)

    data = (tmp_path / "p").read_bytes()

    numbers = [MAGIC, VERSION | StepPhase.CHECKPOINT << 32, 0x1122, 0x33, 0x66, 0x44, os.getpid()]
    assert data[:56] == b"".join(number.to_bytes(8, "little") for number in numbers)
    assert data[56:] == bytes(SIZE - 56)


def test_a_page_that_is_taken_over_starts_afresh(tmp_path: Path) -> None:
    ProgressPage.open(tmp_path / "p").boundary(step=7, applied=6, lasted_ns=5, now_ns=1)

    page = ProgressPage.open(tmp_path / "p")
    found = read(tmp_path / "p")

    assert found is not None
    assert (found.step, found.applied, found.phase) == (0, 0, StepPhase.STARTING)
    assert time.monotonic_ns() - found.moved_ns < 60_000_000_000
    page.close()


@pytest.mark.parametrize("content", [b"", b"short", bytes(SIZE), b"x" * SIZE])
def test_what_is_no_page_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p").write_bytes(content)

    assert read(tmp_path / "p") is None


def test_only_a_plain_file_of_this_user_is_looked_at(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    ProgressPage.open(tmp_path / "page").close()
    (tmp_path / "link").symlink_to(tmp_path / "page")

    places = ("fifo", "link", ".", "nothing")

    assert [PageView.open(tmp_path / place) for place in places] == [None] * 4
    assert PageView.open(Path("/etc/hostname")) is None or os.getuid() == 0


def test_a_page_cut_short_under_its_reader_is_no_page(tmp_path: Path) -> None:
    ProgressPage.open(tmp_path / "p").boundary(step=1, applied=1, lasted_ns=1, now_ns=1)
    view = PageView.open(tmp_path / "p")
    assert view is not None

    os.truncate(tmp_path / "p", 10)

    assert view.read() is None


def test_a_private_page_takes_the_same_words() -> None:
    page = ProgressPage.private()

    page.boundary(step=1, applied=1, lasted_ns=1, now_ns=1)
    page.close()

    assert page.path is None


WRITER = """
import itertools, sys
from pathlib import Path
from torchloom.bus.progress_page import ProgressPage as Page
page = Page.open(Path(sys.argv[1]))
for step in itertools.cycle((0, 2**64 - 1)):
    page.boundary(step, step, step, step)
"""


@pytest.mark.process
def test_a_reader_never_sees_half_a_word_and_the_last_words_of_the_dead_stay(
    tmp_path: Path,
) -> None:
    path = tmp_path / "p"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
    seen = set()
    until(lambda: path.exists() and read(path) is not None)
    view = PageView.open(path)
    assert view is not None

    until(lambda: (view.read() or PageReading(*[0] * 6)).step > 0)
    for _ in range(20_000):
        found = view.read()
        assert found is not None
        seen |= {found.step, found.applied, found.lasted_ns}
    writer.kill()
    writer.wait()

    assert seen == {0, 2**64 - 1}
    found = view.read()
    assert found is not None
    assert found.pid == writer.pid
