"""Statuses as data, JSON and text."""

import json

import pytest
import yaml

from torchloom.specs import (
    NONE,
    AppState,
    AppStatus,
    AppStatusError,
    ReplicaStatus,
    RoleStatus,
    SpecError,
    is_started,
    is_terminal,
)
from torchloom.specs.status import ReplicaErrorReport, read_error


def failed() -> AppStatus:
    error = json.dumps({"message": {"message": "boom", "errorCode": 3}})
    replicas = [
        ReplicaStatus(1, AppState.RUNNING, "trainer", "b"),
        ReplicaStatus(0, AppState.FAILED, "trainer", "a", error, "10.0.0.1"),
    ]
    reader = RoleStatus("reader", [ReplicaStatus(0, AppState.CANCELLED, "reader", "a")])
    return AppStatus(
        AppState.FAILED, 2, "m", NONE, "http://x", [RoleStatus("trainer", replicas), reader]
    )


def test_only_three_states_are_final() -> None:
    assert [s.name for s in AppState if is_terminal(s)] == ["SUCCEEDED", "FAILED", "CANCELLED"]
    assert {s for s in AppState if is_started(s) and not is_terminal(s)} == {AppState.RUNNING}
    assert (str(AppState.FAILED), repr(AppState.FAILED), f"{AppState.FAILED}") == (
        "FAILED",
        "FAILED (5)",
        "FAILED",
    )


def test_a_replica_s_address_is_its_host_unless_said() -> None:
    assert ReplicaStatus(0, AppState.RUNNING, "r", "h").hostaddr == "h"


def test_a_status_is_printed_with_a_line_for_each_replica() -> None:
    assert failed().format(["trainer"]) == (
        "AppStatus:\n"
        "    State: FAILED\n"
        "    Num Restarts: 2\n"
        "    Roles: \n"
        " *trainer[0]:FAILED (exitcode: 3)\n"
        "        timestamp: <N/A>\n"
        "        hostname: a\n"
        "        error_msg: boom\n"
        "  trainer[1]:RUNNING\n"
        "    Msg: m\n"
        "    Structured Error Msg: <NONE>\n"
        "    UI URL: http://x\n"
        "    "
    )


def test_a_status_survives_json_whole() -> None:
    status = failed()

    assert AppStatus.from_json(json.loads(json.dumps(status.to_json()))) == status
    assert status.to_json(["reader"])["roles"] == [
        {
            "role": "reader",
            "replicas": [
                {
                    "id": 0,
                    "state": "CANCELLED",
                    "role": "reader",
                    "hostname": "a",
                    "structured_error_msg": "<NONE>",
                    "hostaddr": "a",
                }
            ],
        }
    ]


@pytest.mark.parametrize("state", ["FAILED", "failed", 5, "5"])
def test_a_state_is_read_by_name_or_number(state: object) -> None:
    data = {"id": 0, "state": state, "role": "r", "hostname": "h"}

    assert ReplicaStatus.from_json(data) == ReplicaStatus(0, AppState.FAILED, "r", "h")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (True, "roles[0].replicas[0].state: expected one of UNSUBMITTED, SUBMITTED, PENDING,"),
        ("BROKEN", "roles[0].replicas[0].state: expected one of UNSUBMITTED, SUBMITTED, PENDING,"),
    ],
)
def test_a_state_there_is_not_is_refused_by_its_path(state: object, message: str) -> None:
    replica = {"id": 0, "state": state, "role": "r", "hostname": "h"}
    data = {"state": "FAILED", "roles": [{"role": "r", "replicas": [replica]}]}

    with pytest.raises(SpecError) as caught:
        AppStatus.from_json(data)

    assert str(caught.value).startswith(f"status.{message}")


def test_only_success_raises_nothing() -> None:
    AppStatus(AppState.SUCCEEDED).raise_for_status()

    with pytest.raises(AppStatusError, match="app did not succeed") as caught:
        failed().raise_for_status()

    assert caught.value.status == failed()


def test_the_repr_is_plain_yaml() -> None:
    parsed = yaml.safe_load(repr(failed()))["AppStatus"]

    assert (parsed["state"], parsed["ui_url"]) == ("FAILED (5)", "http://x")
    assert parsed["roles"][0]["replicas"][0]["state"] == "RUNNING"


@pytest.mark.parametrize(
    ("text", "report"),
    [
        ('{"message": "x", "errorCode": 1, "timestamp": 2}', ReplicaErrorReport("x", 1, 2)),
        (
            '{"message": {"message": "x", "extraInfo": {"timestamp": 2}}}',
            ReplicaErrorReport("x", None, 2),
        ),
        ('{"message": {"message": "x", "extraInfo": "?"}}', ReplicaErrorReport("x")),
        ('{"message": {"message": 1}}', None),
        ("[]", None),
        ("not json", None),
        ("[" * 100_000, None),
    ],
)
def test_error_files_of_two_schemas_are_understood(
    text: str, report: ReplicaErrorReport | None
) -> None:
    assert read_error(text) == report
