"""Apps of another host that shares the state folder: seen, read and followed, but not touched."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from torchloom.errors import UserError
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.record import RunRecord
from torchloom.schedulers.local_scheduler import create_scheduler
from torchloom.specs.api import AppState

from ..harness.home import TIMEOUT, until
from ..launch.records.test_record import ME, RANKS, RUNNING
from ..launch.records.test_request import REQUEST

APP = {"name": "app", "roles": [{"name": "trainer", "image": "", "entrypoint": "x"}]}


@pytest.fixture
def elsewhere(home: Path) -> RunRecord:
    owner = replace(ME, host="elsewhere", boot="theirs")
    logs = str(home / "runs/app-1/logs")
    record = replace(
        RUNNING, guard=owner, launcher=owner, host="elsewhere", log_dir=logs, ranks=RANKS[:1]
    )
    RunFolder.create(REQUEST, APP, record).publish()
    record.log_path(RANKS[0]).mkdir(parents=True)
    return record


def say(record: RunRecord, line: str) -> None:
    with open(record.log_path(record.ranks[0]) / "combined.log", "a") as file:
        file.write(f"{line}\n")


def test_an_app_of_another_host_is_believed(elsewhere: RunRecord) -> None:
    found = create_scheduler("torchx").describe("app-1")

    assert found is not None
    assert (found.state, found.roles_statuses[0].replicas[0].hostname) == (
        AppState.RUNNING,
        "elsewhere",
    )


def test_an_app_of_another_host_is_not_stopped_from_here(elsewhere: RunRecord) -> None:
    with pytest.raises(UserError, match="app-1 runs on host elsewhere; stop it there"):
        create_scheduler("torchx").cancel("app-1")


def test_an_app_of_another_host_is_followed_until_its_record_says_it_is_over(
    elsewhere: RunRecord,
) -> None:
    seen: list[str] = []
    lines = create_scheduler("torchx").log_iter("app-1", "trainer", 1, should_tail=True)
    reader = threading.Thread(target=lambda: [seen.append(line) for line in lines])
    reader.start()

    for number in range(5):
        say(elsewhere, str(number))
        until(lambda number=number: len(seen) == number + 1)
    RunFolder.named("app-1").write_record(replace(elsewhere, state=AppState.SUCCEEDED))

    reader.join(TIMEOUT)
    assert not reader.is_alive()
    assert seen == [f"{number}\n" for number in range(5)]
