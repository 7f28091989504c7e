"""`loom convert`: what it prints, what it writes, and that no file is lost."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from torchloom.cli.convert.program_file import NotReplaced, ProgramFile
from torchloom.cli.main import main

from ..test_json import problems
from .test_conversion import PROGRAMS

BEFORE, AFTER = PROGRAMS["single"]


@pytest.fixture
def script() -> Path:
    """Give a program that can be converted."""
    path = Path("train.py")
    path.write_text(BEFORE)
    return path


def test_the_diff_is_printed_and_nothing_is_changed(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "train.py"]) == 0

    printed = capsys.readouterr()
    assert script.read_text() == BEFORE
    assert printed.out.startswith("--- train.py\n+++ train.py\n")
    assert [line[:15] for line in printed.err.splitlines()] == ["loom: train.py:"] * 3
    assert printed.err.endswith(
        "loom: train.py: 10 lines added, 3 removed, 5 lines indented; -w writes it\n"
    )


def test_the_printed_diff_can_be_applied_by_patch(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["convert", "train.py"])
    diff = capsys.readouterr().out

    subprocess.run(["git", "apply", "-p0"], input=diff, text=True, check=True)

    assert script.read_text() == AFTER


def test_w_writes_the_file_with_its_mode_and_through_a_link(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.chmod(0o755)
    os.symlink("train.py", "link.py")

    assert main(["convert", "-w", "link.py"]) == 0

    printed = capsys.readouterr()
    assert script.read_text() == AFTER.replace('"train"', '"link"')
    assert script.stat().st_mode & 0o777 == 0o755
    assert Path("link.py").is_symlink()
    assert sorted(os.listdir()) == ["link.py", "train.py"]
    assert (printed.out, printed.err.splitlines()[-1][-9:]) == ("", "; written")


def test_a_file_in_another_encoding_stays_in_it(script: Path) -> None:
    text = f"# -*- coding: latin-1 -*-\n# caf\xe9\n{BEFORE}"
    script.write_bytes(text.encode("latin-1"))

    assert main(["convert", "-w", "train.py"]) == 0

    assert script.read_bytes().startswith(
        "# -*- coding: latin-1 -*-\n# caf\xe9\n".encode("latin-1")
    )
    assert script.read_text("latin-1").endswith(AFTER.partition("\n")[2])


def test_a_file_that_changed_meanwhile_is_not_replaced(script: Path) -> None:
    program = ProgramFile.read(script)
    script.write_text("print('newer')\n")

    with pytest.raises(NotReplaced, match="was changed while it was converted"):
        program.replace(AFTER)

    assert script.read_text() == "print('newer')\n"
    assert os.listdir() == ["train.py"]


def test_a_file_that_is_read_only_is_not_replaced(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.chmod(0o444)

    assert main(["convert", "-w", "train.py"]) == 1

    assert "train.py is read-only" in capsys.readouterr().err
    assert script.read_text() == BEFORE


def test_what_is_refused_is_printed_by_line_and_written_by_no_one(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text("import torch\nmodel = torch.nn.DataParallel(None)\n")

    assert main(["convert", "-w", "train.py"]) == 1

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("loom: train.py:2: one process for all devices; use")
    assert "DataParallel" in script.read_text()


def test_a_converted_program_has_nothing_to_convert(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(AFTER)

    assert main(["convert", "-w", "train.py"]) == 0

    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (
        "",
        "loom: train.py: nothing to convert, it uses run.steps\n",
    )
    assert script.read_text() == AFTER


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian.py"], "did you mean 'train.py'?"),
        (["."], "name the program that trains"),
        (["binary.py"], "is not a text file"),
        ([], "Missing argument"),
        (["train.py", "--in-place"], "no option"),
    ],
)
def test_misuse_exits_with_2(
    words: list[str], said: str, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("binary.py").write_bytes(b"\xff\xfe\x00")

    assert main(["convert", *words]) == 2

    assert said in capsys.readouterr().err


def test_json_has_the_diff_the_notes_and_what_is_refused(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(code: int, *words: str) -> dict[str, Any]:
        assert main(["convert", *words, "--json"]) == code
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert problems("convert", found) == []
        return found

    shown = printed(0, "train.py")
    written = printed(0, "-w", "train.py")
    again = printed(0, "train.py")
    script.write_text("import jax\n")
    refused = printed(1, "train.py")

    assert shown["diff"].startswith("--- train.py")
    assert [one["line"] for one in shown["notes"]] == [8, 12]
    assert (shown["written"], shown["refused"]) == (False, [])
    assert written == {**shown, "written": True}
    assert again == {"file": "train.py", "diff": "", "written": False, "refused": [], "notes": []}
    assert (refused["diff"], [one["line"] for one in refused["refused"]]) == ("", [1])


def test_a_program_is_read_and_never_run(script: Path) -> None:
    script.write_text(f"open('ran', 'w').close()\n{BEFORE}")

    main(["convert", "-w", "train.py"])

    assert os.listdir() == ["train.py"]
