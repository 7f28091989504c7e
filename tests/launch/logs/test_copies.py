"""Copies of a rank's streams lie where torchrun's users look, and cost nobody their log."""

from pathlib import Path

import pytest

from torchloom.launch.logs.files import LogFiles
from torchloom.launch.logs.sinks import CopiedLog


@pytest.mark.parametrize(
    ("streams", "copied"),
    [
        (0, {}),
        (1, {"stdout.log": b"a\nb"}),
        (2, {"stderr.log": b"x"}),
        (3, {"stdout.log": b"a\nb", "stderr.log": b"x"}),
    ],
)
def test_the_streams_that_were_asked_for_are_written_twice(
    streams: int, copied: dict[str, bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "D" / "attempt_0" / "1"
    log = CopiedLog(LogFiles(tmp_path / "log"), folder, streams)

    log.write("stdout", b"a\n")
    log.write("stderr", b"x")
    log.write("stdout", b"b")
    log.close()

    assert {path.name: path.read_bytes() for path in folder.iterdir()} == copied
    assert (tmp_path / "log" / "stdout.log").read_bytes() == b"a\nb"
    assert (tmp_path / "log" / "stderr.log").read_bytes() == b"x"
    assert log.directory == tmp_path / "log"


def test_a_silent_rank_has_empty_copies_and_an_earlier_life_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "copies"
    CopiedLog(LogFiles(tmp_path / "log"), folder, 3).close()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    (folder / "stdout.log").write_bytes(b"said to an agent before\n")
    log = CopiedLog(LogFiles(tmp_path / "log"), folder, 3)
    log.write("stdout", b"and to the next\n")

    assert before == {"stdout.log": b"", "stderr.log": b""}
    assert (folder / "stdout.log").read_text() == "said to an agent before\nand to the next\n"


def test_a_copy_that_cannot_be_written_costs_the_copy_alone(tmp_path: Path) -> None:
    folder = tmp_path / "copies"
    log = CopiedLog(LogFiles(tmp_path / "log"), folder, 3)
    (folder / "stdout.log").unlink()
    (folder / "stdout.log").mkdir()

    for line in (b"a\n", b"b\n"):
        log.write("stdout", line)
        log.write("stderr", line)

    assert (tmp_path / "log" / "stdout.log").read_bytes() == b"a\nb\n"
    assert (folder / "stderr.log").read_bytes() == b"a\nb\n"
    assert log.lost == 0
