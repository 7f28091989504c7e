"""Runs over HTTP: found again, shown whole, laid side by side."""

import sys
from collections.abc import Iterator

import httpx
import pytest

from ...harness.home import until
from ...harness.server_plane import PATIENCE, Plane, running

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with running(tmp_path_factory.mktemp("plane")) as started:
        started.start_agent()
        yield started


@pytest.fixture(scope="module")
def runs(admin: httpx.Client) -> list[str]:
    """Run two jobs that differ in one thing; return their runs when both are over."""

    def over(job: str) -> bool:
        return bool(admin.get(f"/api/jobs/{job}").json()["state"] == "COMPLETED")

    made = []
    for rate in (0.1, 0.2):
        spec = {"name": "tune", "command": [sys.executable, "-c", "pass"], "project": "demo"}
        job = admin.post("/api/jobs", json={**spec, "hyperparameters": {"lr": rate}}).json()
        until(lambda job=job: over(job["id"]), PATIENCE)
        made.append(job["run_id"])
    labelled = "/api/experiments?project=demo"  # what a run is about is noted beside its end
    until(lambda: len(admin.get(labelled).json()["items"]) == len(made), PATIENCE)
    return made


def test_a_run_that_is_over_is_listed_newest_first_and_found_by_its_project(
    admin: httpx.Client, runs: list[str]
) -> None:
    whole = admin.get("/api/experiments").json()
    page = admin.get("/api/experiments", params={"limit": 1, "project": "demo"}).json()
    rest = admin.get("/api/experiments", params={"cursor": page["next"], "project": "demo"}).json()
    none = admin.get("/api/experiments", params={"project": "other"}).json()

    assert [run["run_id"] for run in whole["items"]] == runs[::-1]
    assert [run["run_id"] for run in page["items"] + rest["items"]] == runs[::-1]
    assert (rest["next"], none) == (None, {"items": [], "next": None})


def test_runs_are_sorted_by_what_they_were_given(admin: httpx.Client, runs: list[str]) -> None:
    query = {"project": "demo", "sort": "config:lr", "limit": 1}

    first = admin.get("/api/experiments", params=query).json()
    second = admin.get("/api/experiments", params={**query, "cursor": first["next"]}).json()

    found = [(run["run_id"], run["config"]["lr"]) for run in first["items"] + second["items"]]
    assert (found, second["next"]) == ([(runs[0], 0.1), (runs[1], 0.2)], None)


def test_one_run_is_shown_with_its_config_and_where_it_came_from(
    admin: httpx.Client, runs: list[str]
) -> None:
    run = admin.get(f"/api/experiments/{runs[0]}").json()

    assert (run["job_id"], run["state"], run["project"]) == (runs[0], "COMPLETED", "demo")
    assert run["config"]["lr"] == 0.1
    assert {"timeline", "artifacts", "recorded", "summary", "checkpoints"} <= set(run)


def test_runs_are_laid_side_by_side(admin: httpx.Client, runs: list[str]) -> None:
    answer = admin.post("/api/experiments/compare", json={"runs": runs})

    found = answer.json()
    assert (answer.status_code, [run["run_id"] for run in found["runs"]]) == (200, runs)
    assert [row["values"] for row in found["config"] if row["name"].endswith("lr")] == [[0.1, 0.2]]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"runs": ["nobody", "none"]}, 404, "not_found"),
        ({"runs": ["one"]}, 422, "bad_value"),
        ({"runs": "one"}, 422, "bad_value"),
        ({}, 422, "bad_value"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    admin: httpx.Client, body: object, status: int, code: str
) -> None:
    answer = admin.post("/api/experiments/compare", json=body)

    assert (answer.status_code, answer.json()["code"]) == (status, code)


@pytest.mark.parametrize("query", ["where=loss", "cursor=x", "state=ODD", "since=soon", "sort=odd"])
def test_a_search_that_is_none_is_refused(admin: httpx.Client, query: str) -> None:
    answer = admin.get(f"/api/experiments?{query}")

    assert (answer.status_code, "detail" in answer.json()) == (422, True)
