"""The cluster on a page is that of the API, whatever is said of devices and lost on the way."""

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from torchloom.server.stream.topics.cluster import changes, nodes_of
from torchloom.weaver.store.rows import AgentRow

from ....harness.server_plane import Plane, Ranks, Server
from ...following import Page


def device(uuid: str, node: str = "a", *processes: str) -> dict[str, Any]:
    return {"id": uuid, "uuid": uuid, "node": node, "processes": list(processes)}


def test_of_each_part_only_what_is_another_is_told() -> None:
    first, second, third = device("1"), device("2"), device("3")
    known = {"nodes": [], "devices": [first, second], "ranks": [], "jobs": [], "queue": []}
    found = {**known, "devices": [{**first, "state": "failed"}, third], "queue": [{"job": "x"}]}

    assert changes(None, known) == known
    assert changes(known, known) == {}
    assert changes(known, found) == {
        "devices": {"items": [{**first, "state": "failed"}, third], "gone": ["2"]},
        "queue": [{"job": "x"}],
    }


def test_a_host_is_one_node_whoever_was_there_and_a_beat_of_now_is_no_news() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    agents = [
        AgentRow("n-1", "a", "boot", 1, greeted_at=1.0),
        AgentRow("j-1", "a", "boot", 2, state="left", greeted_at=2.0),
        AgentRow("n-2", "b", "boot", 3, state="lost", reason="silent for 2.1 s", greeted_at=3.0),
    ]
    offer = {"id": "n-1", "host": "a", "state": "up", "cpus": 8, "memory_mb": 5, "gpus": []}
    offers = {
        "nodes": [{**offer, "free": {"cpus": 7}, "jobs": ["x"]}],
        "heard": {"n-1": "2029-12-31T23:59:58+00:00", "n-2": "2029-12-31T23:59:59+00:00"},
    }
    devices = [device("1", "a", "x/t/0", "x/t/1"), device("2", "a", "x/t/0"), device("3", "b")]
    nothing = {"cpus": None, "memory_mb": None, "gpus": None, "free": None, "jobs": None}

    assert nodes_of(agents, offers, devices, now) == [
        {
            "id": "a",
            "state": "up",
            "cpus": 8,
            "memory_mb": 5,
            "gpus": [],
            "free": {"cpus": 7},
            "jobs": ["x"],
            "reason": "",
            "workers": 2,
            "heard_at": None,
        },
        {
            "id": "b",
            "state": "lost",
            **nothing,
            "reason": "silent for 2.1 s",
            "workers": 0,
            "heard_at": "2029-12-31T23:59:59+00:00",
        },
    ]


@pytest.mark.process
def test_a_page_of_the_cluster_has_every_word_about_devices_over_a_lost_connection(
    plane: Plane, server: Server, admin: httpx.Client
) -> None:
    page = Page()
    with Ranks(plane):
        with page.open(server):
            page.sub("c", "cluster")
            page.until(lambda page: len(page.state["c"]["ranks"]) == 2)
            mark(admin, "GPU-5", "draining")
            page.until(lambda page: states(page)["GPU-5"] == "draining")
        mark(admin, "GPU-5", "healthy")
        mark(admin, "GPU-6", "failed")
        with page.open(server):
            page.until(lambda page: states(page).get("GPU-6") == "failed")
            stands = page.state["c"]
            listed = admin.get("/api/devices").json()["items"]
            ranks = admin.get("/api/jobs/job-1/ranks").json()["items"]

    assert [{"id": one["uuid"], **one} for one in listed] == stands["devices"]
    assert [(one["id"], one["state"]) for one in stands["ranks"]] == [
        (f"job-1/{rank['role']}/{rank['rank']}", rank["state"]) for rank in ranks
    ]
    assert [(job["id"], job["name"], job["owner"]) for job in stands["jobs"]] == [
        ("job-1", "gpt", "ada")
    ]
    assert "node1" in [node["id"] for node in stands["nodes"]]
    assert page.said("c").count("snapshot") == 2


def states(page: Page) -> dict[str, str]:
    return {one["uuid"]: one["state"] for one in page.state["c"]["devices"]}


def mark(admin: httpx.Client, uuid: str, state: str) -> None:
    said = {"state": state, "new": True}
    admin.post(f"/api/devices/{uuid}/events", json=said).raise_for_status()
