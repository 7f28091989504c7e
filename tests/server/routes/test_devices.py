"""Devices over HTTP: listed, marked by people and by Alertmanager."""

import httpx
import pytest

from ...harness.server_plane import Plane, Ranks

pytestmark = pytest.mark.process


def alert(uuid: str, status: str = "firing", **labels: str) -> dict[str, object]:
    return {"status": status, "labels": {"alertname": "GpuDown", "UUID": uuid, **labels}}


def states(client: httpx.Client) -> dict[str, str]:
    return {one["uuid"]: one["state"] for one in client.get("/api/devices").json()["items"]}


def test_a_device_is_marked_by_whoever_asks_and_shown_with_its_processes(
    plane: Plane, admin: httpx.Client
) -> None:
    with Ranks(plane):
        new = admin.post("/api/devices/GPU-7/events", json={"state": "draining", "new": True})
        used = admin.post("/api/devices/node1/cpu/0/events", json={"state": "healthy"})

    assert (new.status_code, new.json()["state"], new.json()["source"]) == (
        200,
        "draining",
        "admin",
    )
    assert (used.status_code, used.json()["processes"]) == (200, ["job-1/trainer/0"])
    assert states(admin)["GPU-7"] == "draining"


def test_alerts_mark_devices_and_others_are_left_alone(admin: httpx.Client) -> None:
    sent = {
        "version": "4",
        "alerts": [
            alert("GPU-1"),
            alert("GPU-2", "resolved"),
            alert("GPU-3", loom_state="draining"),
            {"status": "firing", "labels": {"alertname": "DiskFull"}},
        ],
    }

    answer = admin.post("/api/devices/alerts", json=sent)

    assert (answer.status_code, answer.json()["devices"]) == (200, ["GPU-1", "GPU-2", "GPU-3"])
    assert {uuid: states(admin)[uuid] for uuid in ("GPU-1", "GPU-2", "GPU-3")} == {
        "GPU-1": "failed",
        "GPU-2": "healthy",
        "GPU-3": "draining",
    }


def test_what_would_become_of_ranks_is_said_and_nothing_is_done(
    plane: Plane, admin: httpx.Client
) -> None:
    with Ranks(plane):
        asked = {"devices": ["node1/cpu/0"], "state": "failed", "reason": "xid 79"}
        answer = admin.post("/api/devices/preview", json=asked)
        [rank, _] = admin.get("/api/jobs/job-1/ranks").json()["items"]

    assert (answer.status_code, answer.json()) == (
        200,
        {
            "state": "failed",
            "devices": ["node1/cpu/0"],
            "summary": [
                "Rank 0 of job-1 is ended at once, "
                "and the job restarts from its newest checkpoint.",
            ],
            "warnings": [
                "CPU slots are only counted: the queue and replaced ranks still use them."
            ],
            "command": "loom devices fail node1/cpu/0 --reason 'xid 79'",
        },
    )
    assert (states(admin)["node1/cpu/0"], rank["state"]) == ("healthy", "up")


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("GPU-99/events", {"state": "failed"}, 404, "not_found"),
        ("GPU-1/events", {"state": "melted"}, 422, "bad_value"),
        ("GPU-1/events", {}, 422, "bad_value"),
        ("alerts", {"alerts": 7}, 422, "bad_alerts"),
        ("alerts", {}, 422, "bad_alerts"),
        ("alerts", [], 422, "bad_value"),
        ("preview", {"devices": ["GPU-99"], "state": "failed"}, 404, "not_found"),
        ("preview", {"devices": [], "state": "failed"}, 422, "bad_value"),
        ("preview", {"devices": ["GPU-1"], "state": "melted"}, 422, "bad_value"),
    ],
)
def test_what_is_no_event_is_refused(
    admin: httpx.Client, path: str, body: object, status: int, code: str
) -> None:
    answer = admin.post(f"/api/devices/{path}", json=body)

    assert (answer.status_code, answer.json()["code"]) == (status, code)
