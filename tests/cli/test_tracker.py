"""`loom tracker`: what trackers know of runs; without any, what is known of our own."""

import json
from pathlib import Path
from typing import Any

import pytest

from torchloom.cli.main import main
from torchloom.torchx.fsspec_tracker import FsspecTracker, LocalFiles
from torchloom.torchx.tracker import AppRun, app_run_from_env

from .test_json import Run, printed, problems

__all__ = ["printed"]

GOOD = "local://torchx/good"


@pytest.fixture
def known(ended: Any, state: Path) -> AppRun:
    """Two runs that have ended; a program of the first one has noted facts."""
    from torchloom.launch.records.tracker import create

    ended("good", ranks=2)
    ended("next")
    run = AppRun(GOOD, [create()])
    run.add_metadata(lr=0.1, state="mine")
    run.add_artifact("model", "/tmp/model.pt", {"step": 3})
    AppRun("local://torchx/next", [create()]).add_source(GOOD, "model")
    return run


def test_our_own_runs_are_tracked_without_a_config(
    known: AppRun, printed: Run, state: Path
) -> None:
    runs = printed("tracker", "list", "jobs", "--json")
    facts = printed("tracker", "list", "metadata", "good", "--json")
    artifacts = printed("tracker", "list", "artifacts", "good", "--json")
    lineage = printed("tracker", "list", "lineage", "next", "--json")
    record = json.loads((state / "runs/good/status.json").read_text())

    assert sorted(runs) == [GOOD, "local://torchx/next"]
    assert (facts["lr"], facts["state"], facts["host"]) == (0.1, "SUCCEEDED", record["host"])
    assert artifacts == [{"name": "model", "path": "/tmp/model.pt", "metadata": {"step": 3}}]
    assert problems("tracker-list-artifacts", artifacts) == []
    assert lineage["sources"] == [{"source_run_id": GOOD, "artifact_name": "model"}]
    assert printed("tracker", "list", "jobs", "--parent-run-id", "good", "--json") == [
        "local://torchx/next"
    ]
    assert [run.id for run in known.children()] == ["local://torchx/next"]


def test_committed_checkpoints_are_artifacts(
    known: AppRun, printed: Run, state: Path, tmp_path: Path
) -> None:
    for name in ("ckpt_step_00010", "ckpt_step_100000", "ckpt_step_00020.g1-1"):
        (tmp_path / "saved" / name).mkdir(parents=True)
    file = state / "runs/good/status.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"checkpoints": str(tmp_path)}))

    names = [row["name"] for row in printed("tracker", "list", "artifacts", "good", "--json")]

    assert names == ["ckpt_step_00010", "ckpt_step_100000", "model"]


def test_the_tracker_of_the_config_file_is_asked(printed: Run, tmp_path: Path, state: Path) -> None:
    (tmp_path / "kept").mkdir()
    FsspecTracker(LocalFiles(), str(tmp_path / "kept")).add_metadata("slurm://s/7", loss=1)
    (tmp_path / "config").write_text(f"protocol=file\nroot_path={tmp_path / 'kept'}\n")
    Path(".torchxconfig").write_text(
        f"[torchx:tracker]\nfsspec =\n\n[tracker:fsspec]\nconfig = {tmp_path / 'config'}\n"
    )

    assert printed("tracker", "list", "jobs", "--json") == ["slurm://s/7"]
    assert printed("tracker", "list", "metadata", "slurm://s/7", "--json") == {"loss": 1}


def test_a_tracker_that_is_not_there_is_named(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(".torchxconfig").write_text("[torchx:tracker]\nnowhere.at.all =\n")

    assert main(["tracker", "list", "jobs"]) == 2
    assert (
        "[torchx:tracker] names 'nowhere.at.all', which does not exist" in capsys.readouterr().err
    )


def test_a_run_of_ours_keeps_what_its_program_notes(
    ended: Any, printed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended("good")
    monkeypatch.setenv("LOOM_JOB", "good")
    monkeypatch.setenv("TORCHX_JOB_ID", GOOD)
    AppRun.run_from_env.cache_clear()

    app_run_from_env().add_metadata(loss=0.5)
    AppRun.run_from_env.cache_clear()

    assert printed("tracker", "list", "metadata", "@", "--json")["loss"] == 0.5
