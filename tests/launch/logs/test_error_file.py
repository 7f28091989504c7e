import json
import os
from pathlib import Path

from torchloom.launch.logs.files import ErrorFile, first_error, put_aside


def error(path: Path, message: str, timestamp: object = None, written: float = 0.0) -> Path:
    """Write what torchelastic's `@record` writes, as if at the given instant."""
    path.parent.mkdir(parents=True, exist_ok=True)
    extra = {} if timestamp is None else {"timestamp": timestamp}
    path.write_text(json.dumps({"message": {"message": message, "extraInfo": extra}}))
    os.utime(path, (written, written))
    return path


def message(text: str | None) -> str | None:
    return json.loads(text)["message"]["message"] if text else None


def first(paths: list[Path]) -> str | None:
    return first_error(map(ErrorFile.read, paths))


def test_the_first_error_is_the_one_that_happened_first(tmp_path: Path) -> None:
    late = error(tmp_path / "0/error.json", "connection closed by peer", "200", written=1)
    early = error(tmp_path / "1/error.json", "out of memory", "100", written=2)

    assert message(first([late, early])) == "out of memory"


def test_without_a_time_of_its_own_a_files_time_counts(tmp_path: Path) -> None:
    late = error(tmp_path / "0/error.json", "late", written=200)
    early = error(tmp_path / "1/error.json", "early", written=100)

    assert message(first([late, early])) == "early"


def test_within_one_second_the_file_that_was_written_first_counts(tmp_path: Path) -> None:
    """`@record` writes whole seconds, and what follows a failure comes in the same one."""
    cause = error(tmp_path / "0/error.json", "the cause", "100", written=100.2)
    effect = error(tmp_path / "1/error.json", "an effect", "100", written=100.8)

    assert message(first([cause, effect])) == "the cause"


def test_anything_a_rank_wrote_is_an_error_with_the_time_of_its_file(tmp_path: Path) -> None:
    early = tmp_path / "text.json"
    early.write_bytes(b"it broke \xff")
    os.utime(early, (50, 50))
    late = error(tmp_path / "0/error.json", "late", "100")

    assert first([late, early]) == "it broke \ufffd"


def test_a_time_that_is_none_counts_as_none(tmp_path: Path) -> None:
    odd = error(tmp_path / "0/error.json", "odd", "yesterday", written=50)
    late = error(tmp_path / "1/error.json", "late", "100")

    assert message(first([late, odd])) == "odd"


def test_no_error_file_is_no_error(tmp_path: Path) -> None:
    assert first([tmp_path / "error.json"]) is None


def test_an_error_of_an_earlier_attempt_is_kept_aside(tmp_path: Path) -> None:
    path = error(tmp_path / "error.json", "first attempt")

    put_aside(path, 0)
    put_aside(path, 1)  # that attempt had none

    assert [entry.name for entry in tmp_path.iterdir()] == ["error.0.json"]
