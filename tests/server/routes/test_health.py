"""Whether the server lives, and whether it can do its work."""

import signal
import stat

import httpx
import pytest

from ...harness.server_plane import Plane, Ranks, Server

pytestmark = pytest.mark.process


def test_both_answer_without_a_token(server: Server) -> None:
    with server.client("") as stranger:
        healthy, ready = stranger.get("/healthz"), stranger.get("/readyz")

    assert (healthy.status_code, healthy.json()["pid"]) == (200, server.process.pid)
    assert (ready.status_code, ready.json()["database"]) == (200, "readable")
    assert ready.json()["weaver"]["pid"] == server.plane.weaver.pid


def test_a_card_says_where_it_answers_to_its_user_alone(server: Server) -> None:
    mode = stat.S_IMODE(server.card.stat().st_mode)

    assert (mode, set(server.facts)) == (0o600, {"url", "pid"})
    assert server.url.startswith("http://127.0.0.1:")


def test_a_weaver_that_is_killed_means_503_and_its_return_200_again(
    plane: Plane, server: Server, admin: httpx.Client
) -> None:
    assert admin.get("/api/devices").status_code == 200  # a connection is kept

    with Ranks(plane), server.client("") as stranger:
        plane.weaver.end()
        away = admin.get("/api/devices")
        ready, alive = stranger.get("/readyz"), stranger.get("/healthz")
        paths = ("/api/jobs", "/api/jobs/job-1", "/api/jobs/job-1/events", "/api/jobs/job-1/audit")
        remembered = [admin.get(path) for path in paths]
        plane.start_weaver()
    back = admin.get("/api/devices")

    assert (away.status_code, away.json()["code"]) == (503, "weaver_away")
    assert (away.headers["retry-after"], bool(away.json()["remedy"])) == ("1", True)
    assert (ready.status_code, alive.status_code) == (503, 200)
    assert [answer.status_code for answer in remembered] == [200] * 4
    assert [job["id"] for job in remembered[0].json()["items"]] == ["job-1"]
    assert (remembered[1].json()["status"], remembered[1].json()["ranks"]) == ("RUNNING", None)
    assert back.status_code == 200


def test_a_server_that_is_told_to_leave_does_so_in_order(plane: Plane, server: Server) -> None:
    other = plane.start_server()
    with other.client() as client:
        assert client.get("/api/jobs").status_code == 200

    code = other.process.end(signal.SIGTERM)

    assert (code, other.card.exists()) == (0, False)
    assert server.card.exists()
