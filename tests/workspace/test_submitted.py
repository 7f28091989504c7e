"""What a job was submitted from is as git tells it, for its user alone to read, and stays."""

import os
from pathlib import Path

import pytest

from torchloom.workspace.sources import FILE, PATCH, SubmittedSources, keep, kept

from ..harness.repositories import committed, git

pytestmark = pytest.mark.process


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("lr = 0.1\n")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job").mkdir()
    return tmp_path / "job"


def noted(folder: Path, *places: Path, is_copied: bool = False) -> SubmittedSources:
    keep(folder, "/cwd", places, is_copied, os.environ)
    found = kept(folder)
    assert found is not None
    return found


def test_commit_and_difference_stay_though_the_sources_go_on(project: Path, folder: Path) -> None:
    commit = committed(project)
    (project / "train.py").write_text("lr = 0.2\n")
    diff = git(project, "diff", "HEAD")

    found = noted(folder, folder, project, is_copied=True)
    git(project, "commit", "-qam", "second")

    assert (found.cwd, found.commit, found.is_changed, found.is_copied) == (
        *("/cwd", commit),
        *(True, True),
    )
    assert found.source is not None
    assert found.source.patch == diff
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert kept(folder) == found


def test_sources_that_are_as_committed_have_no_difference(project: Path, folder: Path) -> None:
    commit = committed(project)

    found = noted(folder, project)

    assert (found.commit, found.is_changed) == (commit, False)
    assert [path.name for path in folder.iterdir()] == [FILE]


def test_outside_of_a_repository_the_folder_alone_is_known(project: Path, folder: Path) -> None:
    found = noted(folder, project)

    assert (found.cwd, found.source, found.commit, found.is_changed) == ("/cwd", None, None, False)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cwd": "/", "is_copied": false, "git": 1}'])
def test_what_cannot_be_read_is_as_if_it_were_not_there(folder: Path, text: str) -> None:
    (folder / FILE).write_text(text)

    assert kept(folder) is None


def test_a_difference_that_is_gone_is_not_taken_for_none(project: Path, folder: Path) -> None:
    committed(project)
    (project / "train.py").write_text("lr = 0.2\n")
    noted(folder, project)

    (folder / PATCH).unlink()

    assert kept(folder) is None
