import sys
from pathlib import Path

import pytest

from torchloom.components.copy_file import main


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_local_file_is_copied_into_a_new_folder(prefix: str, tmp_path: Path) -> None:
    source, target = tmp_path / "a b", tmp_path / "new" / "c"
    source.write_bytes(b"\0data")
    shown = str(source).replace(" ", "%20") if prefix else str(source)

    code = main(["--src", prefix + shown, "--dst", f"{prefix}{target}"])

    assert code == 0
    assert target.read_bytes() == b"\0data"


def test_a_missing_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--src", str(tmp_path / "none"), "--dst", str(tmp_path / "b")])

    assert code == 1
    assert "No such file or directory" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_a_url_without_fsspec_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)

    code = main(["--src", "s3://bucket/key", "--dst", str(tmp_path / "b")])

    assert code == 1
    assert "s3://bucket/key needs fsspec" in capsys.readouterr().err


def test_a_file_of_another_host_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--src", "file://host/a", "--dst", str(tmp_path / "b")])

    assert code == 1
    assert "write file:///path" in capsys.readouterr().err
