import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.errors import UserError
from torchloom.workspace import dir_workspace
from torchloom.workspace.dir_workspace import WorkspaceNotCopied

from .test_walk import project

NOBODY = 65534


def contents(root: Path) -> dict[str, str]:
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(root).as_posix(): path.read_text() for path in files}


def test_a_project_is_copied_without_what_its_ignore_file_names(home: Path, tmp_path: Path) -> None:
    source = project(tmp_path / "p", "a.py", "pkg/b.py", ".git/config", ".venv/x")
    (source / ".loomignore").write_text(".*\n")

    dir_workspace.copy({str(source): ""}, tmp_path / "copy")

    assert contents(tmp_path / "copy") == {"a.py": "a.py", "pkg/b.py": "pkg/b.py"}


def test_every_project_goes_to_its_own_place(home: Path, tmp_path: Path) -> None:
    first, second = project(tmp_path / "p", "a.py"), project(tmp_path / "q", "b.py")
    places = {
        str(first): "",
        f"file://{second}": "lib/q",
        str(first / "a.py"): "renamed.py",
        str(second / "b.py"): "",
    }

    dir_workspace.copy(places, tmp_path / "copy")

    assert contents(tmp_path / "copy") == {
        "a.py": "a.py",
        "lib/q/b.py": "b.py",
        "renamed.py": "a.py",
        "b.py": "b.py",
    }


def test_later_edits_do_not_reach_the_copy_and_modes_are_kept(home: Path, tmp_path: Path) -> None:
    source = project(tmp_path / "p", "run.sh")
    (source / "run.sh").chmod(0o755)

    dir_workspace.copy({str(source): ""}, tmp_path / "copy")
    (source / "run.sh").write_text("edited")

    assert contents(tmp_path / "copy") == {"run.sh": "run.sh"}
    assert os.access(tmp_path / "copy/run.sh", os.X_OK)


def test_a_link_leads_to_its_fellow_in_the_copy_or_to_the_same_place_outside(
    home: Path, tmp_path: Path
) -> None:
    source = project(tmp_path / "p", "pkg/a.py")
    outside = project(tmp_path / "data", "x")
    (source / "inside").symlink_to("pkg/a.py")
    (source / "pkg/up").symlink_to("../../data")
    (source / "absolute").symlink_to(outside)

    dir_workspace.copy({str(source): ""}, tmp_path / "deep/er/copy")

    copy = tmp_path / "deep/er/copy"
    assert (copy / "inside").resolve() == copy / "pkg/a.py"
    assert (copy / "pkg/up").resolve() == outside
    assert (copy / "absolute").resolve() == outside


def test_two_projects_with_the_same_link_are_laid_over_each_other(
    home: Path, tmp_path: Path
) -> None:
    first, second = project(tmp_path / "p", "a"), project(tmp_path / "q", "b")
    (first / "link").symlink_to("a")
    (second / "link").symlink_to("b")

    dir_workspace.copy({str(first): "", str(second): ""}, tmp_path / "copy")

    assert (tmp_path / "copy/link").read_text() == "b"


def test_a_state_folder_inside_the_project_is_not_copied_into_itself(home: Path) -> None:
    source = project(home.parent, "train.py")
    target = home / "runs/.new-x/workspace/main"

    dir_workspace.copy({str(source): ""}, target)

    assert contents(target) == {"train.py": "train.py"}


def test_what_has_no_content_is_left_out(home: Path, tmp_path: Path) -> None:
    source = project(tmp_path / "p", "a.py")
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "socket"))

        dir_workspace.copy({str(source): ""}, tmp_path / "copy")

    assert contents(tmp_path / "copy") == {"a.py": "a.py"}


def test_a_file_that_cannot_be_copied_is_named_with_the_remedy(home: Path, tmp_path: Path) -> None:
    source = project(tmp_path / "p", "pkg/a.py")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/pkg").write_text("in the way")

    with pytest.raises(WorkspaceNotCopied) as raised:
        dir_workspace.copy({str(source): ""}, tmp_path / "copy")

    assert str(raised.value) == (
        f"cannot copy workspace {str(source)!r}: {tmp_path}/copy/pkg: File exists; "
        "fix that, or leave it out with a line in .loomignore"
    )


@contextlib.contextmanager
def ordinary_user(folder: Path) -> Iterator[None]:
    """Own the folder and be nobody for a while where the tests run as root, who may do all."""
    if os.geteuid():
        yield
        return
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_cannot_be_read_is_an_error_and_not_empty(home: Path) -> None:
    with tempfile.TemporaryDirectory() as open_to_all:
        source = project(Path(open_to_all, "p"), "pkg/a.py")
        (source / "pkg").chmod(0)

        with (
            ordinary_user(Path(open_to_all)),
            pytest.raises(WorkspaceNotCopied, match="Permission"),
        ):
            dir_workspace.copy({str(source): ""}, Path(open_to_all, "copy"))

        (source / "pkg").chmod(0o700)


@pytest.mark.parametrize("place", ["/abs", "../up", "a/../../up"])
def test_a_place_outside_the_copy_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(UserError, match="must be below the workspace"):
        dir_workspace.check({str(tmp_path): place})


@pytest.mark.parametrize("name", ["nowhere", "x" * 10_000, "a\nb"])
def test_a_project_that_does_not_exist_is_refused_in_few_words(name: str) -> None:
    with pytest.raises(UserError, match="does not exist; name a folder that does") as raised:
        dir_workspace.check({name: ""})

    assert len(str(raised.value)) < 200
