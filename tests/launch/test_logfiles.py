from pathlib import Path

from torchloom.launch.logfiles import LogFiles


def written(directory: Path) -> dict[str, bytes]:
    names = ("stdout.log", "stderr.log", "combined.log")
    return {name: (directory / name).read_bytes() for name in names if (directory / name).exists()}


def test_each_stream_has_its_file_and_combined_has_both(tmp_path: Path) -> None:
    log = LogFiles(tmp_path / "role/0")

    log.write("stdout", b"one\n")
    log.write("stderr", b"two\n")
    log.write("stdout", b"three\n")
    log.close()

    assert written(tmp_path / "role/0") == {
        "stdout.log": b"one\nthree\n",
        "stderr.log": b"two\n",
        "combined.log": b"one\ntwo\nthree\n",
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
        "combined.log": b"a whole line\nfirst half, second half\nand a bit\n",
    }


def test_a_stream_shows_a_partial_line_at_once_and_combined_at_the_end(tmp_path: Path) -> None:
    log = LogFiles(tmp_path)

    log.write("stdout", b"50 %\r")
    before = written(tmp_path)
    log.close()

    assert before == {"stdout.log": b"50 %\r"}
    assert written(tmp_path) == {"stdout.log": b"50 %\r", "combined.log": b"50 %\r"}


def test_a_line_without_end_does_not_grow_in_memory(tmp_path: Path) -> None:
    log = LogFiles(tmp_path)

    log.write("stdout", b"x" * 40_000)
    log.write("stdout", b"x" * 40_000)

    assert len(written(tmp_path)["combined.log"]) == 80_000


def test_a_second_attempt_writes_behind_the_first(tmp_path: Path) -> None:
    for attempt in (b"first\n", b"second\n"):
        log = LogFiles(tmp_path)
        log.write("stdout", attempt)
        log.close()

    assert written(tmp_path)["combined.log"] == b"first\nsecond\n"


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
