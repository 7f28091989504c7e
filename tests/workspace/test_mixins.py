"""A scheduler that inherits TorchX's workspace classes gets its workspaces built by the runner."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from torchloom.specs.api import AppDef, Role, Workspace
from torchloom.workspace.mixins import (
    DirWorkspaceMixin,
    MultiWorkspaceMixin,
    TmpDirWorkspaceMixin,
    WorkspaceMixin,
    pin_workspace_images,
)

from ..runner.test_runner import Engine, app, over


class InFolder(DirWorkspaceMixin, Engine): ...


class Several(MultiWorkspaceMixin):
    def __init__(self) -> None:
        self.builders = {"dir": DirWorkspaceMixin(), "tmp": TmpDirWorkspaceMixin()}

    def workspace_builders(self) -> Mapping[str, WorkspaceMixin[Any]]:
        return self.builders


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.py").write_text("1")
    (folder / "big.bin").write_text("2")
    (folder / ".torchxignore").write_text("*.bin\n")
    return folder


@pytest.mark.usefixtures("home")
def test_the_runner_builds_before_the_plan(project: Path, tmp_path: Path) -> None:
    cfg = {"queue": "q", "job_dir": str(tmp_path / "job")}

    info = over(lambda session_name, **_: InFolder(session_name)).dryrun(
        app(), "memory", cfg, workspace=str(project)
    )

    assert info.app is not None
    assert info.app.roles[0].image == str(tmp_path / "job")
    assert sorted(file.name for file in (tmp_path / "job").iterdir()) == [
        ".torchxignore",
        "train.py",
    ]


def test_several_projects_are_merged_first(project: Path, tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("3")
    places = {str(project): "", str(tmp_path / "more.txt"): "sub/more.txt"}
    role = Role("a", "old", workspace=Workspace(places))

    TmpDirWorkspaceMixin().build_workspaces([role], {})

    assert (Path(role.image) / "sub/more.txt").read_text() == "3"
    assert (Path(role.image) / "train.py").read_text() == "1"


def test_an_option_names_the_builder(project: Path, tmp_path: Path) -> None:
    several = Several()
    role = Role("a", "old", workspace=Workspace({str(project): ""}))

    several.build_workspaces([role], {"job_dir": str(tmp_path / "job")})
    option = several.workspace_opts().get("workspace_type")

    assert role.image == str(tmp_path / "job")
    assert option is not None
    assert option.default == "dir"
    assert several.dryrun_push_images(AppDef("a"), {"workspace_type": "tmp"}) == ("tmp", None)
    several.push_images(("tmp", None))
    with pytest.raises(ValueError, match="no workspace_type 'x'; there are dir, tmp"):
        several.workspace_builder({"workspace_type": "x"})


def test_built_images_are_pinned_by_image_and_workspace() -> None:
    done, other = Workspace({"a": ""}), Workspace({"b": ""})
    roles = [Role("x", "i", workspace=done), Role("y", "i", workspace=other), Role("z", "i")]

    pin_workspace_images(AppDef("a", roles), {("i", done): "built"})

    assert [(role.image, role.workspace) for role in roles] == [
        ("built", None),
        ("i", other),
        ("i", None),
    ]
