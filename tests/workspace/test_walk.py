from pathlib import Path

import pytest

from torchloom.workspace.api import is_ignored, read_ignore, walk_workspace


def project(root: Path, *files: str) -> Path:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def walked(root: Path, leave_out: Path | None = None) -> list[str]:
    return [path.as_posix() for path in walk_workspace(root, leave_out)]


def test_all_files_of_a_project_are_walked_in_the_order_of_their_names(tmp_path: Path) -> None:
    root = project(tmp_path, "b.py", "a.py", "pkg/z.py", "pkg/sub/m.py", "data/x")

    assert walked(root) == ["a.py", "b.py", "data/x", "pkg/z.py", "pkg/sub/m.py"]


def test_the_first_ignore_file_counts_alone(tmp_path: Path) -> None:
    (tmp_path / ".dockerignore").write_text("docker\n")
    (tmp_path / ".torchxignore").write_text("# a comment\n\n  spaced  \n!kept\n")

    assert read_ignore(tmp_path) == ("spaced", "!kept")

    (tmp_path / ".loomignore").write_text("loom\n")
    assert read_ignore(tmp_path) == ("loom",)


def test_a_project_without_ignore_file_ignores_nothing(tmp_path: Path) -> None:
    assert read_ignore(tmp_path) == ()


@pytest.mark.parametrize(
    ("path", "patterns", "ignored"),
    [
        ("a.py", ["*.pyc"], False),
        ("a.pyc", ["*.pyc"], True),
        ("pkg/a.pyc", ["*.pyc"], True),
        ("out/x/y", ["out"], True),
        ("out/x/y", ["out/"], True),
        ("out/x/y", ["/out"], True),
        ("out/x/y", ["out/x"], True),
        ("src/out", ["out"], False),
        ("out/keep", ["out", "!out/keep"], False),
        ("out/keep", ["!out/keep", "out"], True),
        (".git/config", [".*"], True),
        ("a.py", [".*"], False),
        ("abc.py", ["?"], False),
        ("a/b.py", ["?"], True),
        ("a.py", ["."], False),
        ("a.py", ["*"], True),
        ("a.py", ["*", "!a.py"], False),
    ],
)
def test_the_last_pattern_that_speaks_of_a_path_decides(
    path: str, patterns: list[str], ignored: bool
) -> None:
    assert is_ignored(path, patterns) is ignored


def test_a_file_taken_back_from_an_ignored_folder_is_walked(tmp_path: Path) -> None:
    root = project(tmp_path, "out/a", "out/b", "c")
    (root / ".loomignore").write_text("out\n!out/b\n.loomignore\n")

    assert walked(root) == ["c", "out/b"]


def test_links_are_walked_as_what_they_are_and_not_followed(tmp_path: Path) -> None:
    root = project(tmp_path / "project", "a.py")
    project(tmp_path / "elsewhere", "big")
    (root / "data").symlink_to(tmp_path / "elsewhere")
    (root / "loop").symlink_to(root)
    (root / "b.py").symlink_to("a.py")

    assert walked(root) == ["a.py", "b.py", "data", "loop"]


def test_the_folder_to_leave_out_is_no_part_of_the_project(tmp_path: Path) -> None:
    root = project(tmp_path, "a.py", "state/runs/x", "pkg/state/y")

    assert walked(root, leave_out=root / "state") == ["a.py", "pkg/state/y"]
