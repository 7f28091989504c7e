"""A record is completed by what the ranks bring, and keeps what nobody can tell any more."""

import json
import os
from pathlib import Path

import pytest

from torchloom.launch.records.folder import RunFolder
from torchloom.weaver.runs.provenance import ProvenanceRequest, brief, completed, is_name, recorded
from torchloom.weaver.store.rows import DeviceRow, RankProcessRow
from torchloom.workspace import sources

from ...harness.repositories import committed, git

RECORD = {"hardware": {"host": "a", "nodes": ["a", "b"]}, "world_size": 2, "cwd": "/x"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOM_HOME", str(tmp_path))
    path = RunFolder.named("job-1").path
    path.mkdir(parents=True)
    return path


def test_nodes_and_devices_are_those_of_the_ranks_that_came(folder: Path) -> None:
    ranks = tuple(
        RankProcessRow("job-1", "t", n, 0, f"life-{n}", node=node) for n, node in enumerate("abc")
    )
    devices = (DeviceRow("GPU-1", "c", "gpu"), DeviceRow("GPU-9", "far", "gpu"))

    whole = completed(RECORD, ProvenanceRequest("job-1", "job-1", "a", 3, ranks, devices))

    assert whole["hardware"]["nodes"] == ["a", "b", "c"]
    assert [one["uuid"] for one in whole["hardware"]["devices"]] == ["GPU-1"]
    assert (whole["world_size"], whole["cwd"]) == (3, "/x")
    assert json.loads((folder / "experiment.json").read_bytes()) == whole


def test_a_weaver_that_knows_no_rank_any_more_leaves_a_record_as_it_is(folder: Path) -> None:
    assert completed(RECORD, ProvenanceRequest("job-1", "job-1", "a", None)) == RECORD
    assert list(folder.iterdir()) == []


class Queued:
    """A job that was submitted from a changed repository, and has now begun elsewhere."""

    def __init__(self, folder: Path, tmp_path: Path, is_copied: bool = False) -> None:
        self._folder, self.project = folder, tmp_path / "project"
        self.project.mkdir()
        (self.project / "train.py").write_text("lr = 0.1\n")
        self.commit = committed(self.project)
        (self.project / "train.py").write_text("lr = 0.2\n")
        self.diff = git(self.project, "diff", "HEAD")
        self._job = tmp_path / "submitted"
        self._job.mkdir()
        sources.keep(self._job, str(self.project), [self.project], is_copied, os.environ)

    def begin(self, cwd: Path) -> tuple[str, bytes, list[str]]:
        """Return the commit, the difference and what is noted of them."""
        roles = [{"replicas": [{"argv": ["python", "train.py"], "env": {}}]}]
        asked = {"roles": roles, "cwd": str(cwd), "submitted": str(self._job)}
        (self._folder / "request.json").write_text(json.dumps(asked))
        record = recorded(ProvenanceRequest("job-1", "job-1", "a", 1, env=os.environ))
        patch = self._folder / "diff.patch"
        notes = [note for note in record["notes"] if "sources" in note]
        return record["git"]["commit"], patch.read_bytes() if patch.exists() else b"", notes


@pytest.mark.process
def test_a_job_that_runs_a_copy_has_what_was_submitted(folder: Path, tmp_path: Path) -> None:
    job = Queued(folder, tmp_path, is_copied=True)
    git(job.project, "commit", "-qam", "second")

    assert job.begin(job.project) == (job.commit, job.diff, [])


@pytest.mark.process
def test_a_job_whose_host_knows_no_repository_has_what_was_submitted(
    folder: Path, tmp_path: Path
) -> None:
    job = Queued(folder, tmp_path)

    assert job.begin(tmp_path) == (job.commit, job.diff, [])


@pytest.mark.process
def test_sources_that_were_edited_while_a_job_was_queued_are_what_runs_and_it_is_said(
    folder: Path, tmp_path: Path
) -> None:
    job = Queued(folder, tmp_path)
    same = job.begin(job.project)
    (job.project / "train.py").write_text("lr = 0.3\n")
    edited = job.begin(job.project)

    assert same == (job.commit, job.diff, [])
    assert edited[:2] == (job.commit, git(job.project, "diff", "HEAD"))
    assert edited[2] == [
        f"the sources were changed after the submission, which was at {job.commit}"
    ]


def test_lists_have_little_of_a_record() -> None:
    git = {"commit": "abc", "branch": "work", "dirty": True, "untracked": ["x"] * 1000}
    spec = {"project": "toys", "tags": ("a",), "seed": 1}

    assert brief({"git": git, "spec": spec, "python": "3.11", "torch": None}) == {
        "commit": "abc",
        "branch": "work",
        "dirty": True,
        "python": "3.11",
        "torch": None,
        "project": "toys",
        "group": "",
        "tags": ["a"],
    }
    assert brief({})["commit"] is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".new-x", "a\0"])
def test_a_job_of_such_a_name_has_no_folder(name: str) -> None:
    assert not is_name(name)
