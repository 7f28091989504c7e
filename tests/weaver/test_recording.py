"""A record is completed by what the ranks bring, and keeps what nobody can tell any more."""

import json
from pathlib import Path

import pytest

from torchloom.launch.folder import RunFolder
from torchloom.weaver.recording import Wanted, brief, completed, is_name
from torchloom.weaver.store.rows import Device, Rank

RECORD = {"hardware": {"host": "a", "nodes": ["a", "b"]}, "world_size": 2, "cwd": "/x"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOM_HOME", str(tmp_path))
    path = RunFolder.named("job-1").path
    path.mkdir(parents=True)
    return path


def test_nodes_and_devices_are_those_of_the_ranks_that_came(folder: Path) -> None:
    ranks = tuple(Rank("job-1", "t", n, 0, f"life-{n}", node=node) for n, node in enumerate("abc"))
    devices = (Device("GPU-1", "c", "gpu"), Device("GPU-9", "far", "gpu"))

    whole = completed(RECORD, Wanted("job-1", "job-1", "a", 3, ranks, devices))

    assert whole["hardware"]["nodes"] == ["a", "b", "c"]
    assert [one["uuid"] for one in whole["hardware"]["devices"]] == ["GPU-1"]
    assert (whole["world_size"], whole["cwd"]) == (3, "/x")
    assert json.loads((folder / "experiment.json").read_bytes()) == whole


def test_a_weaver_that_knows_no_rank_any_more_leaves_a_record_as_it_is(folder: Path) -> None:
    assert completed(RECORD, Wanted("job-1", "job-1", "a", None)) == RECORD
    assert list(folder.iterdir()) == []


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
