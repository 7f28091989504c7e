import io
import threading
from pathlib import Path

import pytest

from torchloom.torchx.streams import Tee


def test_what_files_get_is_written_until_the_end(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("a\n")
    second.touch()
    tee = Tee(io.FileIO(tmp_path / "out", "w"), str(first), str(second))

    tee.write(b"between\n")
    with second.open("a") as file:
        file.write("b\n")
    tee.close()
    tee.close()

    assert sorted((tmp_path / "out").read_text().splitlines()) == ["a", "b", "between"]
    assert not tee.thread.is_alive()
    assert threading.current_thread() is not tee.thread


def test_a_tee_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one file"):
        Tee(io.FileIO(tmp_path / "out", "w"))
