import json
import os
from dataclasses import replace

import pytest

from torchloom.launch.host.identity import ProcessIdentity
from torchloom.launch.records.record import RankRecord, RunRecord
from torchloom.specs.api import AppState

ME = ProcessIdentity.mine()
GONE = replace(ME, started="1")  # this pid, but another process had it
RANKS = (
    RankRecord(
        role="trainer",
        replica=1,
        rank=6,
        local_rank=2,
        state=AppState.RUNNING,
        process=ME,
        attempt=3,
        logs="trainer/1/2",
        started_at="2026-08-01T00:00:01.000+00:00",
    ),
    RankRecord("trainer", 0, 0, 0, AppState.SUCCEEDED, exit_code=0, logs="trainer/0/0"),
    RankRecord("trainer", 0, 1, 1, logs="trainer/0/1"),
)
RUNNING = RunRecord(
    id="app-1",
    name="app",
    session="torchx",
    owner="ann",
    host=ME.host,
    log_dir="/logs",
    created_at="2026-08-01T00:00:00.000+00:00",
    state=AppState.RUNNING,
    restarts=3,
    started_at="2026-08-01T00:00:01.000+00:00",
    guard=ME,
    launcher=ME,
    ranks=RANKS,
)


def test_a_record_survives_a_trip_through_json() -> None:
    told = json.loads(json.dumps(RUNNING.to_dict()))

    assert RunRecord.from_dict(told) == RUNNING
    assert (told["state"], told["ranks"][0]["state"]) == ("RUNNING", "RUNNING")


def test_a_record_of_nothing_started_survives_it_too() -> None:
    new = RunRecord("app-1", "app", "", "ann", "here", "/logs", "2026-08-01T00:00:00.000+00:00")

    assert RunRecord.from_dict(json.loads(json.dumps(new.to_dict()))) == new


@pytest.mark.parametrize(("guard", "launcher"), [(ME, ME), (ME, GONE), (GONE, ME), (None, ME)])
def test_a_run_whose_guard_or_launcher_lives_is_what_it_says(
    guard: ProcessIdentity | None, launcher: ProcessIdentity
) -> None:
    owned = replace(RUNNING, guard=guard, launcher=launcher)

    assert owned.truth() is owned


@pytest.mark.parametrize(
    "owner", [GONE, replace(ME, boot="another"), replace(ME, pid=2**22 + 1), None]
)
def test_a_run_whose_guard_and_launcher_are_gone_is_lost(owner: ProcessIdentity | None) -> None:
    truth = replace(RUNNING, guard=owner, launcher=owner).truth()

    assert truth == replace(
        RUNNING,
        guard=owner,
        launcher=owner,
        state=AppState.FAILED,
        reason="launcher_lost",
        ranks=(
            replace(RANKS[0], state=AppState.FAILED),
            RANKS[1],
            replace(RANKS[2], state=AppState.FAILED),
        ),
    )


def test_a_run_of_another_host_is_believed() -> None:
    owner = replace(ME, host="elsewhere", boot="theirs")
    there = replace(RUNNING, guard=owner, launcher=owner, host="elsewhere")

    assert there.truth() is there


@pytest.mark.parametrize("state", [AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED])
def test_a_run_that_is_over_stays_as_it_ended(state: AppState) -> None:
    ended = replace(RUNNING, state=state, reason="x", guard=GONE, launcher=GONE)

    assert ended.is_over()
    assert ended.truth() is ended


def test_a_rank_has_its_logs_below_the_runs() -> None:
    assert os.fspath(RUNNING.log_path(RANKS[0])) == "/logs/trainer/1/2"
