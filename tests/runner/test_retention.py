"""Whose config file says how long things are kept, and how mistakes in it are told."""

from pathlib import Path

import pytest

from torchloom.rules.retention import BadRetention, RetentionLimits
from torchloom.runner import retention

DAY = 86400.0


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("home", "project"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LOOMCONFIG", raising=False)
    monkeypatch.delenv("TORCHXCONFIG", raising=False)
    monkeypatch.chdir(tmp_path / "project")


def shown() -> list[tuple[str, str]]:
    return [(str(each.state), each.text) for each in retention.findings()]


def test_the_file_in_the_home_counts(tmp_path: Path) -> None:
    (tmp_path / "home/.loomconfig").write_text("[retention]\nruns = 90d\nkeep = 3\n")

    assert retention.limits() == RetentionLimits(runs=90 * DAY, keep=3)
    assert shown() == [("ok", "runs after 90d; the last 3 runs stay")]


def test_a_project_cannot_have_anything_removed_and_is_told_so() -> None:
    Path(".loomconfig").write_text("[retention]\nruns = 0h\nkeep = 0\n")

    assert retention.limits() == RetentionLimits()
    ((state, text),) = shown()
    assert state == "note"
    assert text.endswith("project/.loomconfig has [retention], which has no effect there")


def test_the_file_that_is_named_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").write_text("[retention]\nlogs = 2w\n")
    monkeypatch.setenv("LOOMCONFIG", str(tmp_path / "own"))

    assert retention.limits() == RetentionLimits(logs=14 * DAY)


def test_without_any_everything_is_kept() -> None:
    assert retention.limits() == RetentionLimits()
    assert shown() == [("ok", "everything is kept")]


def test_a_mistake_is_refused_and_told_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "home/.loomconfig"
    path.write_text("[retention]\nruns = ninety days\n")

    with pytest.raises(BadRetention, match="write an age such as 12h, 90d or 4w"):
        retention.limits()
    (found,) = retention.findings()
    assert (found.state, found.remedy) == (
        "problem",
        f"correct {path}; until then nothing is removed",
    )


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "home/.loomconfig").write_text("runs = 90d\n")

    ((state, text),) = shown()

    assert state == "problem"
    assert str(tmp_path / "home/.loomconfig") in text
