"""What ranks print is printed where their agent was started, and nobody waits for its reader."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from torchloom.launch.hosts.sites import NoiseFilter
from torchloom.launch.logs.files import STREAMS, LogFiles
from torchloom.launch.logs.sinks import ShownLog

from ...harness.home import allowed


@contextmanager
def standard_output_is(fd: int) -> Iterator[None]:
    """Give descriptor 1 another meaning for a while."""
    kept = os.dup(1)
    os.dup2(fd, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def test_whole_lines_are_shown_behind_their_prefix(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = ShownLog(LogFiles(tmp_path), {"stdout": "[r0]:", "stderr": "[r0]:"})

    for data in (b"one\ntw", b"o\n", b"\n", b"10%\r", b"20%\r30%"):
        log.write("stdout", data)
    log.write("stderr", b"end")
    half = capfd.readouterr()
    log.close()
    rest = capfd.readouterr()

    assert (half.out, half.err) == ("[r0]:one\n[r0]:two\n[r0]:\n[r0]:10%\n", "")
    assert (rest.out, rest.err) == ("[r0]:30%\n", "[r0]:end\n")
    assert (tmp_path / "stdout.log").read_bytes() == b"one\ntwo\n\n10%\r20%\r30%"


def test_without_a_prefix_all_is_shown_as_it_comes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = ShownLog(LogFiles(tmp_path), {"stdout": "", "stderr": None})

    log.write("stdout", b"one\ntw")
    log.write("stderr", b"kept in the log alone\n")
    shown = capfd.readouterr()
    log.close()

    assert (shown.out, shown.err) == ("one\ntw", "")
    assert (tmp_path / "stderr.log").read_bytes() == b"kept in the log alone\n"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("prefix", ["", "[r0]:"])
def test_noise_is_not_shown_and_the_log_has_it(
    prefix: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    noise = NoiseFilter(["WARN .*"], "mine")
    log = ShownLog(LogFiles(tmp_path), dict.fromkeys(STREAMS, prefix), noise)

    log.write("stdout", b"one\nWARN a\nWA")
    log.write("stderr", b"two\n")
    log.write("stdout", b"RN b\nthree\n")
    log.write("stderr", b"WARN c")
    log.close()

    assert capfd.readouterr() == (f"{prefix}one\n{prefix}three\n", f"{prefix}two\n")
    assert noise.hidden == 3
    assert (tmp_path / "stdout.log").read_bytes() == b"one\nWARN a\nWARN b\nthree\n"
    assert (tmp_path / "stderr.log").read_bytes() == b"two\nWARN c"


def test_a_reader_that_is_gone_costs_nothing(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    log = ShownLog(LogFiles(tmp_path), {"stdout": ""})

    with standard_output_is(write_end):
        log.write("stdout", b"one\n")
        log.write("stdout", b"two\n")
    os.close(write_end)

    assert (tmp_path / "stdout.log").read_bytes() == b"one\ntwo\n"


@pytest.mark.process
def test_a_reader_that_does_not_read_is_waited_for_once(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    log = ShownLog(LogFiles(tmp_path), {"stdout": ""})
    began = time.monotonic()

    with standard_output_is(write_end):
        for _ in range(20):
            log.write("stdout", b"x" * 65536)
        took = time.monotonic() - began
        read = os.read(read_end, 1 << 20)
        log.write("stdout", b"again\n")
    os.close(write_end)

    assert took < allowed(3)
    assert read.strip(b"x") == b""
    assert os.read(read_end, 1 << 20).endswith(b"again\n")
    assert (tmp_path / "stdout.log").stat().st_size == 20 * 65536 + 6
    os.close(read_end)
