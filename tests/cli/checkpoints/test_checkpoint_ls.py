"""`loom checkpoint ls`: what the store holds, newest first, also where no plane runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchloom.cli.main import main
from torchloom.launch.records.folder import RunFolder

from ..test_json import problems
from .stored import commit, draft, row

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def root(ended: Callable[..., Any], state: Path) -> Path:
    """Have a job that is over; give where its checkpoints are."""
    ended("train-1", ranks=2)
    return state / "runs" / "train-1" / "checkpoints"


def listed(capsys: Captured, *words: str) -> Any:
    capsys.readouterr()
    assert main(["checkpoint", "ls", "--json", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert problems("checkpoint-ls", found) == []
    return found


def test_checkpoints_are_listed_by_number_newest_first(root: Path, capsys: Captured) -> None:
    for step in (99_999, 5, 100_000):
        commit(root, step)

    found = listed(capsys, "train-1")

    assert found == [row(root, 100_000), row(root, 99_999), row(root, 5)]


def test_people_see_size_ranks_trigger_and_metrics(root: Path, capsys: Captured) -> None:
    commit(root, 40, b"x" * 4096, metrics={"loss": 0.25}, trigger="command")

    assert main(["checkpoint", "ls", "train-1"]) == 0

    heads, line = capsys.readouterr().out.splitlines()
    assert heads.split() == ["STEP", "AGE", "SIZE", "RANKS", "TRIGGER", "STATE", "METRICS"]
    assert line.split()[0] == "40"
    assert line.split()[2:] == ["4.1", "kB", "1", "command", "committed", "loss=0.25"]


def test_a_damaged_one_is_shown_as_such_with_the_shard_and_why(
    root: Path, capsys: Captured
) -> None:
    commit(root, 10)
    commit(root, 20)
    commit(root, 30)
    (root / "ckpt_step_00010" / "worker_1.pt").write_bytes(b"tw")
    (root / "ckpt_step_00020" / "worker_0.pt").unlink()
    (root / "ckpt_step_00030" / "manifest.json").write_text("{}")

    found = listed(capsys, "train-1")

    assert [(one["step"], one["state"], one["reason"]) for one in found] == [
        (30, "damaged", "manifest.json: format is missing"),
        (20, "damaged", "worker_0.pt: is missing"),
        (10, "damaged", "worker_1.pt: has 2 bytes, not 3"),
    ]


def test_one_without_a_manifest_is_damaged_and_not_overlooked(root: Path, capsys: Captured) -> None:
    commit(root, 0)
    (root / "ckpt_step_00000" / "manifest.json").unlink()

    (found,) = listed(capsys, "train-1")

    assert (found["step"], found["state"], found["reason"]) == (
        0,
        "damaged",
        "manifest.json: is missing",
    )


def test_what_was_set_aside_is_shown_behind_the_one_that_took_its_place(
    root: Path, capsys: Captured
) -> None:
    storage = commit(root, 10)
    storage.set_aside(10)
    commit(root, 10)

    found = listed(capsys, "train-1")

    assert [(one["step"], one["state"], Path(one["place"]).name) for one in found] == [
        (10, "committed", "ckpt_step_00010"),
        (10, "set aside", "ckpt_step_00010.bad"),
    ]


def test_drafts_are_listed_only_when_all_is_asked_for(root: Path, capsys: Captured) -> None:
    commit(root, 10)
    draft(root, 20, generation=3, attempt=2)

    few, every = listed(capsys, "train-1"), listed(capsys, "train-1", "--all")

    assert [one["step"] for one in few] == [10]
    assert [(one["step"], one["state"], one["generation"], one["attempt"]) for one in every] == [
        (20, "writing", 3, 2),
        (10, "committed", 0, 0),
    ]


def test_the_store_is_where_the_runs_record_says(
    root: Path, tmp_path: Path, capsys: Captured
) -> None:
    elsewhere = tmp_path / "disk" / "train-1" / "checkpoints"
    commit(elsewhere, 7)
    status = RunFolder.named("train-1").path / "status.json"
    status.write_text(json.dumps({**json.loads(status.read_text()), "checkpoints": str(elsewhere)}))

    assert listed(capsys, "train-1") == [row(elsewhere, 7)]


def test_a_job_without_any_has_an_empty_list(root: Path, capsys: Captured) -> None:
    assert listed(capsys, "train-1") == []

    main(["checkpoint", "ls", "train-1"])
    assert capsys.readouterr().out == "no checkpoints\n"
