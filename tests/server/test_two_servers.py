"""Two servers on one Postgres serve the same jobs, and either may be killed."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..harness.home import until
from ..harness.postgres_server import new_database, running_postgres
from ..harness.server_plane import PATIENCE, Plane, Ranks, running

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with running_postgres() as url:
        database = new_database(url, "served")
        with running(tmp_path_factory.mktemp("plane"), database) as started:
            yield started


def test_what_is_told_to_one_is_shown_by_the_other_when_the_first_is_killed(plane: Plane) -> None:
    plane.start_agent()
    first, second = plane.start_server(), plane.start_server()
    spec = {"name": "both", "command": [sys.executable, "-c", "pass"]}

    with first.client() as one, second.client() as other, Ranks(plane):
        key = {"Idempotency-Key": "k"}
        made = one.post("/api/jobs", json=spec, headers=key).json()["id"]
        seen = [client.get("/api/jobs").json() for client in (one, other)]
        first.process.end()
        repeated = other.post("/api/jobs", json=spec, headers=key)
        until(lambda: other.get(f"/api/jobs/{made}").json()["state"] == "COMPLETED", PATIENCE)
        change = {"verb": "set", "values": {"lr": 0.02}}
        changed = other.post("/api/jobs/job-1/commands", json=change)

    assert {job["id"] for job in seen[0]["items"]} == {made, "job-1"}
    assert [job["id"] for job in seen[0]["items"]] == [job["id"] for job in seen[1]["items"]]
    assert (repeated.status_code, repeated.json()["id"]) == (200, made)
    assert (changed.status_code, changed.json()["state"]) == (200, "applied")
    assert not list(Path(plane.home, "plane").glob("*.db"))


def test_a_server_writes_nothing_even_if_it_tries(plane: Plane) -> None:
    from torchloom.weaver.store import StateLost, place_of
    from torchloom.weaver.store.reader import open_reading
    from torchloom.weaver.store.rows import QuotaRow

    reading = open_reading(place_of(plane.home, plane.env))

    with pytest.raises(StateLost, match="read-only"):
        reading.state.put(QuotaRow("eve", 99))

    reading.close()
