import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.launch.logs.files import LogFiles
from torchloom.launch.logs.reader import Combined, Tail


def written(directory: Path) -> dict[str, bytes]:
    names = ("stdout.log", "stderr.log", "combined.log")
    found = {name: directory / name for name in names if (directory / name).exists()}
    shown = {name: path.read_bytes() for name, path in found.items()}
    both = combined(directory)
    return {**shown, "combined": both} if both else shown


def combined(directory: Path) -> bytes:
    try:
        with Combined(directory).open() as file:
            return file.read()
    except FileNotFoundError:
        return b""


def test_each_stream_has_its_file_and_combined_has_both(tmp_path: Path) -> None:
    log = LogFiles(tmp_path / "role/0")

    log.write("stdout", b"one\n")
    log.write("stderr", b"two\n")
    log.write("stdout", b"three\n")
    log.close()

    assert written(tmp_path / "role/0") == {
        "stdout.log": b"one\nthree\n",
        "stderr.log": b"two\n",
        "combined": b"one\ntwo\nthree\n",
    }


def test_lines_of_two_streams_are_never_mixed_in_combined(tmp_path: Path) -> None:
    log = LogFiles(tmp_path)

    log.write("stdout", b"first half, ")
    log.write("stderr", b"a whole line\nand a ")
    log.write("stdout", b"second half\n")
    log.write("stderr", b"bit\n")
    log.close()

    assert written(tmp_path) == {
        "stdout.log": b"first half, second half\n",
        "stderr.log": b"a whole line\nand a bit\n",
        "combined": b"a whole line\nfirst half, second half\nand a bit\n",
    }


def test_a_stream_shows_a_partial_line_at_once_and_combined_at_the_end(tmp_path: Path) -> None:
    log = LogFiles(tmp_path)

    log.write("stdout", b"50 %\r")
    before = written(tmp_path)
    log.close()

    assert before == {"stdout.log": b"50 %\r"}
    assert written(tmp_path) == {"stdout.log": b"50 %\r", "combined": b"50 %\r"}


def test_a_line_without_end_does_not_grow_in_memory(tmp_path: Path) -> None:
    log = LogFiles(tmp_path)

    log.write("stdout", b"x" * 40_000)
    log.write("stdout", b"x" * 40_000)

    assert len(written(tmp_path)["combined"]) == 80_000


def test_a_second_attempt_writes_behind_the_first(tmp_path: Path) -> None:
    for attempt in (b"first\n", b"second\n"):
        log = LogFiles(tmp_path)
        log.write("stdout", attempt)
        log.close()

    assert written(tmp_path)["combined"] == b"first\nsecond\n"


def test_a_rank_that_prints_nothing_leaves_no_logs(tmp_path: Path) -> None:
    LogFiles(tmp_path / "silent").close()

    assert written(tmp_path / "silent") == {}


def test_logs_are_the_users_own(tmp_path: Path) -> None:
    log = LogFiles(tmp_path)
    log.write("stdout", b"secret\n")
    log.close()

    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_bytes_that_cannot_be_written_are_counted_once_and_cost_nothing_else(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("no folder")
    log = LogFiles(tmp_path / "file/0")

    log.write("stdout", b"12345\n")
    log.write("stderr", b"123\n")
    log.close()

    assert log.lost == 10


def test_what_a_rank_prints_is_stored_once(tmp_path: Path) -> None:
    log = LogFiles(tmp_path)
    for number in range(2000):
        log.write("stdout", b"a line of some length, as ranks print it by the million\n")
        if number % 100 == 0:
            log.write("stderr", b"a warning\n")
    log.close()

    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    said = 2000 * 56 + 20 * 10
    assert sum(sizes.values()) < 1.05 * said, sizes
    assert len(combined(tmp_path)) == said


def test_the_lines_of_both_streams_are_read_in_their_order_while_they_come(tmp_path: Path) -> None:
    """Also by the next writer in the same folder, which finds half a line there."""
    chance = random.Random(3)
    log, tail = LogFiles(tmp_path), Tail(tmp_path)
    halves, expected, seen = {"stdout": b"", "stderr": b""}, b"", b""
    for number in range(3000):
        stream = chance.choice(["stdout", "stdout", "stderr"])
        data = b"".join(chance.choices([b"ab", b"c\n", b"\n", b"xyz"], k=chance.randint(1, 4)))
        log.write(stream, data)
        whole, newline, half = (halves[stream] + data).rpartition(b"\n")
        expected, halves[stream] = expected + whole + newline, half
        if number % 7 == 0:
            seen += tail.read()
        if number % 500 == 499:
            log = LogFiles(tmp_path)  # the one before was killed

    assert seen + tail.read() == expected
    log.close()
    assert tail.read() == halves["stdout"] + halves["stderr"]


def test_a_folder_that_an_earlier_version_has_written_goes_on(tmp_path: Path) -> None:
    (tmp_path / "stdout.log").write_bytes(b"one\nthree\n")
    (tmp_path / "stderr.log").write_bytes(b"two\n")
    (tmp_path / "combined.log").write_bytes(b"one\ntwo\nthree\n")
    (tmp_path / "times").write_bytes(b"1.000 0 0 0\n")
    before = combined(tmp_path)
    log = LogFiles(tmp_path)

    log.write("stderr", b"four\n")
    log.write("stdout", b"five\n")

    assert before == b"one\ntwo\nthree\n"
    assert combined(tmp_path) == b"one\ntwo\nthree\nfour\nfive\n"
    assert (tmp_path / "combined.log").read_bytes() == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=256k", "loom-logs", str(disk)]
    subprocess.run(words, check=True)
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.needs("mount")
def test_on_a_full_disk_the_order_is_of_what_was_written(small_disk: Path) -> None:
    log = LogFiles(small_disk / "0")
    for _ in range(100):
        log.write("stdout", b"o" * 4095 + b"\n")
        log.write("stderr", b"e" * 4095 + b"\n")
    log.close()

    stored = sum((small_disk / "0" / f"{name}.log").stat().st_size for name in ("stdout", "stderr"))
    assert log.lost == 100 * 2 * 4096 - stored > 0
    assert len(combined(small_disk / "0")) == stored
