"""Workspaces: which folders travel with an app, and where they land."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchloom.errors import UserError
from torchloom.specs import Workspace


@pytest.mark.parametrize(
    ("text", "projects"),
    [
        (None, {}),
        ("", {}),
        (".", {".": ""}),
        ("/home/a b/ü", {"/home/a b/ü": ""}),
        ("a:b", {"a:b": ""}),
        ("file:///x", {"file:///x": ""}),
        ("'quoted'", {"quoted": ""}),
        ("a: b", {"a": "b"}),
        ("a:", {"a": ""}),
        ("/a: x\n/b:\n", {"/a": "x", "/b": ""}),
        ("{/a: x, /b: y}", {"/a": "x", "/b": "y"}),
    ],
)
def test_a_workspace_is_a_path_or_a_mapping(text: str | None, projects: dict[str, str]) -> None:
    assert Workspace.from_str(text) == Workspace(projects)


@pytest.mark.parametrize("text", ["memory://torchx", "s3://bucket/x", "{s3://b: x}"])
def test_a_workspace_on_another_machine_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not on this machine: give a local path or file://"):
        Workspace.from_str(text)


@pytest.mark.parametrize("text", ["[a, b]", "{a: 1}", "1: a", "{a", "!!python/name:os.system x: 1"])
def test_a_workspace_that_is_neither_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UserError, match=r"^workspace[^\n]*$"):
        Workspace.from_str(text)


def test_a_workspace_is_a_value() -> None:
    one, many = Workspace({"a": ""}), Workspace({"a": "x", "b": ""})

    assert (bool(Workspace({})), bool(one)) == (False, True)
    assert len({one, Workspace({"a": ""}), many}) == 2
    assert one != "a"
    assert (str(one), str(many)) == ("a", "a:x;b")
    assert [w.is_unmapped_single_project() for w in (one, many, Workspace({"a": "x"}))] == [
        True,
        False,
        False,
    ]


def test_projects_are_copied_to_their_places(tmp_path: Path) -> None:
    project, single, out = tmp_path / "proj", tmp_path / "one.txt", tmp_path / "out"
    (project / "deep").mkdir(parents=True)
    (project / "deep" / "f.py").write_text("f")
    single.write_text("1")
    (out / "code").mkdir(parents=True)
    (out / "code" / "kept").write_text("k")
    places = {f"file://{project}": "code", str(single): "", f"{tmp_path}/./one.txt": "d/two.txt"}

    Workspace(places).merge_into(out)

    files = {str(f.relative_to(out)): f.read_text() for f in out.rglob("*") if f.is_file()}
    assert files == {"code/deep/f.py": "f", "code/kept": "k", "one.txt": "1", "d/two.txt": "1"}


def test_nothing_is_copied_when_one_project_is_missing(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    places = {str(tmp_path / "here"): "x", str(tmp_path / "gone"): "y"}

    with pytest.raises(UserError, match="does not exist"):
        Workspace(places).merge_into(tmp_path / "out")

    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["../up", "/abs", "a/../../b", "~/x"])
def test_a_place_outside_the_job_s_folder_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(UserError, match="leaves the job's folder"):
        Workspace({str(tmp_path): place}).merge_into(tmp_path / "out")


def test_a_folder_is_not_copied_into_itself(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be copied into itself"):
        Workspace({str(tmp_path): ""}).merge_into(tmp_path / "out")


@given(st.text())
@example("~nobody-of-this-name")
def test_any_text_is_a_workspace_or_one_clear_error(text: str) -> None:
    message = ""
    try:
        Workspace.from_str(text)
    except UserError as error:
        message = str(error)

    assert "\n" not in message
