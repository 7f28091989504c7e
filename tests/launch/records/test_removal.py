"""What is no longer kept of ended runs goes, of real folders; nothing else does."""

from pathlib import Path

import pytest

from torchloom.launch.host.identity import ProcessIdentity
from torchloom.launch.records import catalog, removal
from torchloom.rules.retention import RetentionLimits
from torchloom.specs.api import AppState

from ...harness.ended_runs import ended_run

DAY = 86400.0


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_HOME", str(tmp_path / "loom"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def there(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def test_a_run_goes_whole_with_logs_that_are_elsewhere(tmp_path: Path) -> None:
    folder = ended_run("gpt-1", 100, logs=tmp_path / "logs" / "torchx" / "gpt-1")
    other = ended_run("gpt-2", 100)

    assert removal.remove_run("gpt-1")

    assert there(folder.parent) - {".ended.jsonl"} == {"gpt-2"}
    assert there(tmp_path / "logs" / "torchx") == set()
    assert "logs" in there(other)
    assert not removal.remove_run("gpt-1")


def test_logs_and_dumps_go_alone() -> None:
    folder = ended_run("gpt-1", 100)

    assert (removal.remove_logs("gpt-1"), removal.remove_dumps("gpt-1")) == (True, True)

    assert there(folder) == {"app.json", "request.json", "status.json"}
    assert (removal.remove_logs("gpt-1"), removal.remove_dumps("gpt-1")) == (False, False)


def test_a_folder_of_logs_that_is_not_the_runs_own_stays(tmp_path: Path) -> None:
    ended_run("gpt-1", 100, logs=tmp_path / "shared")

    assert not removal.remove_logs("gpt-1")
    assert removal.remove_run("gpt-1")

    assert there(tmp_path / "shared") == {"trainer"}


def test_what_a_killed_removal_left_goes_with_the_next_one() -> None:
    folder = ended_run("gpt-1", 100)
    (folder / "logs").rename(folder / ".rm-logs")
    (folder / "logs").mkdir()

    assert removal.remove_logs("gpt-1")

    assert there(folder) == {"app.json", "request.json", "status.json", "dumps"}


@pytest.mark.parametrize("name", ["../gpt-1", "..", ".", "", "a/b"])
def test_a_name_that_leaves_the_folder_of_runs_removes_nothing(name: str) -> None:
    folder = ended_run("gpt-1", 100)

    assert not any(act(name) for act in (removal.remove_run, removal.remove_logs))

    assert "status.json" in there(folder)


def test_what_runs_is_left_alone() -> None:
    folder = ended_run("gpt-1", 100, AppState.RUNNING, launcher=ProcessIdentity.mine())
    before = there(folder)

    rows = removal.carry_out(RetentionLimits(runs=0.0, logs=0.0, dumps=0.0, keep=0), dry=False)

    acts = (removal.remove_run, removal.remove_logs, removal.remove_dumps)
    assert (rows, [act("gpt-1") for act in acts]) == ([], [False] * 3)
    assert there(folder) == before


def test_all_that_is_due_goes_and_is_told() -> None:
    ended_run("new-1", 1)
    old, older = ended_run("old-1", 10), ended_run("old-2", 100)
    ended_run("inner-1", 100, parent="old-2")
    limits = RetentionLimits(runs=90 * DAY, logs=7 * DAY, metrics=DAY, keep=1)

    would = removal.carry_out(limits, dry=True)
    assert older.is_dir()
    done = removal.carry_out(limits, dry=False)

    assert [(row["kind"], row["job"], row["done"], row["text"]) for row in would] == [
        ("run", "old-2", False, "would remove"),
        ("logs", "old-1", False, "would remove"),
        ("run", "inner-1", False, "would remove"),
    ]
    assert [(row["kind"], row["job"], row["done"], row["text"]) for row in done] == [
        ("run", "old-2", True, "removed"),
        ("logs", "old-1", True, "removed"),
        ("run", "inner-1", True, "removed"),
    ]
    assert {record.id for record in catalog.everything()} == {"new-1", "old-1"}
    assert there(old) == {"app.json", "request.json", "status.json", "dumps"}
    assert removal.carry_out(limits, dry=False) == []
