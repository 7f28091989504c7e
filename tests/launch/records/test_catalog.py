import json
from dataclasses import replace
from pathlib import Path

import pytest

from torchloom.launch.host.identity import ProcessIdentity
from torchloom.launch.records import catalog
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.record import RunRecord
from torchloom.specs.api import AppState

from .test_record import RUNNING
from .test_request import REQUEST

GONE = replace(ProcessIdentity.mine(), started="1")


def run(day: int, state: AppState = AppState.RUNNING) -> RunRecord:
    """Make a run of that day, `app-DAY`."""
    created = f"2026-08-{day:02}T00:00:00.000+00:00"
    record = replace(RUNNING, id=f"app-{day}", created_at=created, state=state, reason="why")
    RunFolder.create(replace(REQUEST, app_id=record.id), {}, record).publish()
    return record


def listed() -> list[tuple[str, AppState, str]]:
    return [(record.id, record.state, record.reason) for record in catalog.records()]


def index(home: Path) -> Path:
    return home / "runs/.ended.jsonl"


def test_runs_are_listed_newest_first_and_other_folders_left_out(home: Path) -> None:
    for day in (1, 3, 2):
        run(day)
    (home / "runs/app-9").mkdir()

    assert [record.id for record in catalog.records()] == ["app-3", "app-2", "app-1"]


@pytest.mark.parametrize("text", ["", '{"id": ', "[]", "null", '{"id": "app-1"}', '{"state": "X"}'])
def test_a_run_whose_record_is_spoiled_is_a_failed_one(text: str, home: Path) -> None:
    run(1)
    (home / "runs/app-1/status.json").write_text(text)

    assert listed() == [("app-1", AppState.FAILED, "record_damaged")]
    found = catalog.record("app-1")
    assert found is not None
    assert (found.state, found.reason) == (AppState.FAILED, "record_damaged")


def test_what_only_a_newer_version_knows_is_left_out(home: Path) -> None:
    made = run(1)
    path = home / "runs/app-1/status.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "mood": "good"}))

    assert catalog.record("app-1") == made.truth()


def test_a_listed_run_whose_owners_are_gone_is_lost(home: Path) -> None:
    RunFolder.create(REQUEST, {}, replace(RUNNING, guard=GONE, launcher=GONE)).publish()

    assert listed() == [("app-1", AppState.FAILED, "launcher_lost")]


def test_an_ended_run_is_listed_the_same_whether_its_folder_or_the_index_is_read(
    home: Path,
) -> None:
    ended, running = run(1, AppState.FAILED), run(2)
    first = catalog.records()
    (home / "runs/app-1/status.json").write_text("not read any more")

    assert catalog.records() == [running, replace(ended, ranks=(), guard=None, launcher=None)]
    assert [record.id for record in first] == ["app-2", "app-1"]


def test_a_run_that_was_noted_when_it_ended_is_read_from_the_index(home: Path) -> None:
    ended = run(1, AppState.SUCCEEDED)
    catalog.add_ended(ended)
    (home / "runs/app-1/status.json").unlink()

    assert listed() == [("app-1", AppState.SUCCEEDED, "why")]


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe\n[1]\n{}\nnull\n", b'["app-1", "to'])
def test_an_index_that_is_lost_or_torn_does_no_harm(home: Path, damage: bytes) -> None:
    run(1, AppState.SUCCEEDED)
    run(2, AppState.FAILED)
    before = listed()

    index(home).write_bytes(damage)

    assert listed() == before == listed()


def test_a_removed_run_is_not_listed_though_the_index_knows_it(home: Path) -> None:
    catalog.add_ended(run(1, AppState.SUCCEEDED))

    RunFolder.named("app-1").remove()

    assert listed() == []


def test_an_index_that_is_mostly_of_removed_runs_is_written_anew(home: Path) -> None:
    kept = run(1, AppState.SUCCEEDED)
    for number in range(200):
        catalog.add_ended(replace(kept, id=f"gone-{number}"))

    catalog.records()
    catalog.records()

    lines = index(home).read_text().splitlines()
    assert [json.loads(line)[0] for line in lines] == ["app-1"]
    assert [path.name for path in (home / "runs").iterdir() if "partial" in path.name] == []


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../runs/app-1", "/etc", ".new-app-1", "a\0b", "x" * 10_000, "app-2"]
)
def test_a_name_that_no_run_has_names_nothing(home: Path, name: str) -> None:
    run(1)

    assert catalog.record(name) is None


def test_one_run_is_read_with_its_ranks(home: Path) -> None:
    assert catalog.record(run(1).id) == replace(RUNNING, reason="why")
