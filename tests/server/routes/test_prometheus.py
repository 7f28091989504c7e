"""What Prometheus scrapes of a living plane, read by its own parser."""

import re
import sqlite3
from contextlib import closing

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ...harness.server_plane import Plane, Ranks

pytestmark = pytest.mark.process


def scraped(admin: httpx.Client) -> dict[str, list[tuple[dict[str, str], float]]]:
    answer = admin.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in text_string_to_metric_families(answer.text)
    }


def test_the_plane_its_jobs_and_the_server_are_told_in_numbers(
    plane: Plane, admin: httpx.Client
) -> None:
    with Ranks(plane, "counted", "gpt"):
        found = scraped(admin)

    assert found["torchloom_weaver_up"] == [({}, 1.0)]
    assert found["torchloom_epoch"] == [({}, _epochs(plane))]
    assert found["torchloom_agents"] == [({}, 1.0)]
    assert ({"state": "RUNNING"}, 1.0) in found["torchloom_jobs"]
    assert ({"job": "counted", "name": "gpt"}, 10.0) in found["torchloom_job_step"]
    ranks = [labels["rank"] for labels, _ in found["torchloom_rank_step_seconds"]]
    assert ranks == ["0", "1"]
    assert {"torchloom_ranks", "torchloom_backlog", "torchloom_dropped"} <= found.keys()


def test_requests_are_counted_by_template(admin: httpx.Client) -> None:
    admin.get("/api/jobs/nobody/logs")

    samples = scraped(admin)["torchloom_http_requests"]

    assert [labels for labels, _ in samples if labels["status"] == "404"] == [
        {"method": "GET", "path": "/api/jobs/{id}/logs", "status": "404"}
    ]


def test_without_a_weaver_the_server_still_tells_of_itself(
    plane: Plane, admin: httpx.Client
) -> None:
    plane.weaver.end()
    try:
        found = scraped(admin)
    finally:
        plane.start_weaver()

    assert found["torchloom_weaver_up"] == [({}, 0.0)]
    assert "torchloom_http_requests" in found
    assert not [name for name in found if re.match("torchloom_(jobs|epoch|ranks)", name)]


def _epochs(plane: Plane) -> float:
    path = plane.home / "plane" / "state.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
        found: float = base.execute("select max(epoch) from epochs").fetchone()[0]
        return found
