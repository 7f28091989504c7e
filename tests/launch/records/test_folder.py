import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchloom.launch.records import catalog
from torchloom.launch.records.folder import RunFolder, StateNotWritable, all_folders
from torchloom.specs.api import AppState

from .test_record import RUNNING
from .test_request import REQUEST

APP = {"name": "app", "roles": []}


def new() -> RunFolder:
    return RunFolder.create(REQUEST, APP, RUNNING)


def listed() -> list[str]:
    return [folder.app_id for folder in all_folders()]


def without_time(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in event.items() if key != "time"} for event in events]


def block(folder: RunFolder, name: str) -> None:
    """Make a file impossible to replace, for root too."""
    (folder.path / name).unlink(missing_ok=True)
    (folder.path / name / "in the way").mkdir(parents=True)


# Coming and going.


def test_a_folder_under_construction_is_seen_by_nobody(home: Path) -> None:
    folder = new()

    assert (listed(), catalog.records(), catalog.record("app-1")) == ([], [], None)
    assert folder.app_id == "app-1"


def test_a_published_folder_has_everything_at_once(home: Path) -> None:
    folder = new().publish()

    assert listed() == ["app-1"]
    assert (folder.app(), folder.request(), folder.record()) == (APP, REQUEST, RUNNING)
    assert folder.path == home / "runs/app-1" == RunFolder.named("app-1").path


def test_of_two_that_are_made_for_one_app_the_first_that_is_shown_is_the_one(home: Path) -> None:
    first, second = new(), new()

    shown = first.publish()
    with pytest.raises(OSError, match="not empty"):
        second.publish()

    assert (first.app_id, second.app_id) == (shown.app_id, shown.app_id)
    assert listed() == [shown.app_id]


def test_a_run_that_its_maker_knows_of_is_agreed_on(home: Path) -> None:
    folder = new().publish()
    before = folder.is_agreed()

    folder.agree()

    assert (before, RunFolder.named(folder.app_id).is_agreed()) == (False, True)


def test_what_is_in_a_folder_is_the_users_own(home: Path) -> None:
    folder = new().publish()

    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.path.iterdir()}
    assert modes == {"app.json": 0o600, "request.json": 0o600, "status.json": 0o600}
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_a_state_folder_that_takes_no_files_is_named_with_the_remedy(home: Path) -> None:
    (home / "runs").write_text("a file, not a folder")

    with pytest.raises(StateNotWritable) as raised:
        new()

    assert str(raised.value) == (
        f"cannot write to {home}/runs: Not a directory; free some disk space, fix its permissions, "
        "or set LOOM_HOME to another folder"
    )


def test_a_removed_run_is_gone_with_its_refuge(home: Path, tmp_path: Path) -> None:
    folder = new().publish()
    block(folder, "status.json")
    folder.write_record(RUNNING)

    folder.remove()

    assert (listed(), catalog.record("app-1")) == ([], None)
    assert list((home / "runs").iterdir()) == []
    assert list((tmp_path / "run").rglob("*.json")) == []


def test_without_any_run_there_is_nothing(home: Path) -> None:
    assert (listed(), catalog.records()) == ([], [])


# The record.


def test_a_record_is_replaced_whole(home: Path) -> None:
    folder = new().publish()
    done = replace(RUNNING, state=AppState.SUCCEEDED)

    folder.write_record(done)

    assert folder.record() == done
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "app.json",
        "request.json",
        "status.json",
    ]


def test_a_record_that_the_folder_does_not_take_finds_refuge_and_is_read_from_there(
    home: Path, tmp_path: Path
) -> None:
    folder = new().publish()
    block(folder, "status.json")
    done = replace(RUNNING, state=AppState.SUCCEEDED)

    folder.write_record(done)

    assert (folder.record(), catalog.record("app-1")) == (done, done)
    assert [path.name for path in (tmp_path / "run/torchloom").iterdir()] == ["app-1.json"]


def test_when_the_folder_takes_records_again_the_refuge_is_left(home: Path, tmp_path: Path) -> None:
    folder = new().publish()
    block(folder, "status.json")
    folder.write_record(RUNNING)
    (folder.path / "status.json/in the way").rmdir()
    (folder.path / "status.json").rmdir()
    done = replace(RUNNING, state=AppState.SUCCEEDED)

    folder.write_record(done)

    assert folder.record() == done
    assert list((tmp_path / "run/torchloom").iterdir()) == []


# The history.


def test_events_are_kept_in_order(home: Path) -> None:
    folder = new().publish()

    folder.add_event("running")
    folder.add_event("exit", role="a", code=-9)

    assert without_time(folder.events()) == [
        {"event": "running"},
        {"event": "exit", "role": "a", "code": -9},
    ]


def test_a_torn_line_ends_the_history(home: Path) -> None:
    folder = new().publish()
    folder.add_event("running")
    with open(folder.path / "events.jsonl", "a") as file:
        file.write('{"time": "2026-')

    assert without_time(folder.events()) == [{"event": "running"}]


def test_a_run_without_events_has_no_history(home: Path) -> None:
    assert new().events() == []


def test_an_event_that_cannot_be_written_costs_nothing_else(home: Path) -> None:
    folder = new().publish()
    block(folder, "events.jsonl")

    folder.add_event("running")


# Who asked for the end.


def test_the_first_wish_to_end_a_run_stands(home: Path) -> None:
    folder = new().publish()
    assert folder.cancel_request() == {}

    folder.ask_cancel("ann", "cancelled_by_user", signal.SIGTERM)
    folder.ask_cancel("bob", "too_slow", signal.SIGKILL)

    wish = folder.cancel_request()
    assert without_time([wish]) == [{"by": "ann", "reason": "cancelled_by_user", "signal": 15}]


def test_a_wish_is_there_whole_or_not_at_all(home: Path) -> None:
    """A second shell that finds it there signals the agent, which then reads it."""
    folders = [RunFolder(home / str(number)) for number in range(200)]
    for folder in folders:
        folder.path.mkdir()

    def ask() -> None:
        for folder in folders:
            folder.ask_cancel("ann", "cancelled_by_user", signal.SIGTERM)

    shell = threading.Thread(target=ask)
    shell.start()
    found = []
    for folder in folders:
        while not (folder.path / "cancel.json").exists():
            pass
        found.append(folder.cancel_request().get("by"))
    shell.join()

    assert found == ["ann"] * len(folders)
