"""Jobs over real HTTP: what is listed, shown and refused, in the words and keys of the seed."""

import contextlib
import sqlite3
from collections.abc import Iterator

import httpx
import pytest

from ...harness.home import until
from ...harness.server_plane import Plane, Ranks, Server

pytestmark = pytest.mark.process
JOB = {
    *("id", "job_id", "run_id", "name", "state", "status", "reason", "step", "world_size"),
    *("attempt", "generation", "handle", "scheduler", "owner"),
    *("created_at", "started_at", "ended_at"),
}
RANK = {
    *("rank", "local_rank", "replica", "node", "pid", "state", "step", "device_uuids"),
    *("generation", "role"),
}
PROBLEM = {"type", "title", "status", "detail", "code"}


@pytest.fixture(scope="module")
def ranks(plane: Plane, server: Server) -> Iterator[Ranks]:
    with Ranks(plane) as living:
        yield living


def test_a_list_has_the_keys_of_the_seed_and_the_step_that_only_the_weaver_knows(
    admin: httpx.Client, ranks: Ranks
) -> None:
    until(lambda: admin.get("/api/jobs").json()["items"][0]["step"] == 10)

    answer = admin.get("/api/jobs")

    (job,) = answer.json()["items"]
    assert (answer.status_code, answer.json()["next"]) == (200, None)
    assert set(job) >= JOB
    assert (job["job_id"], job["status"], job["name"]) == ("job-1", "RUNNING", "gpt")
    assert (job["owner"], job["world_size"], job["step"]) == ("ada", 2, 10)


def test_a_job_is_found_by_id_beginning_and_name_and_shown_with_its_ranks(
    admin: httpx.Client, ranks: Ranks
) -> None:
    found = [admin.get(f"/api/jobs/{name}") for name in ("job-1", "job", "gpt")]

    assert [answer.status_code for answer in found] == [200] * 3
    assert {answer.json()["id"] for answer in found} == {"job-1"}
    job = found[0].json()
    assert JOB | {"ranks", "spec", "summary"} <= set(job)
    assert [rank["rank"] for rank in job["ranks"]] == [0, 1]
    assert all(set(rank) >= RANK for rank in job["ranks"])


def test_ranks_and_knobs_are_lists_with_items_and_next(admin: httpx.Client, ranks: Ranks) -> None:
    one, other = (admin.get(f"/api/jobs/job-1/{name}").json() for name in ("ranks", "knobs"))

    assert [(rank["rank"], rank["node"]) for rank in one["items"]] == [(0, "node1"), (1, "node1")]
    assert [(knob["name"], knob["value"], knob["ranks"]) for knob in other["items"]] == [
        ("lr", 0.1, [0, 1])
    ]
    assert (one["next"], other["next"]) == (None, None)


def test_events_go_on_from_their_cursor_and_none_comes_twice(
    admin: httpx.Client, ranks: Ranks
) -> None:
    first = admin.get("/api/jobs/job-1/events", params={"limit": 1000}).json()
    again = admin.get("/api/jobs/job-1/events", params={"cursor": first["next"]}).json()

    assert "job_started" in [event["kind"] for event in first["items"]]
    assert {event["from"] for event in first["items"]} == {"weaver"}
    assert again == {"items": [], "next": first["next"]}


def test_a_job_that_was_not_submitted_has_no_spec(admin: httpx.Client, ranks: Ranks) -> None:
    answer = admin.get("/api/jobs/job-1/spec")

    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert admin.get("/api/jobs/job-1").json()["spec"] is None


@pytest.mark.parametrize(
    "path", ["", "/spec", "/ranks", "/knobs", "/stacks", "/events", "/audit", "/commands"]
)
def test_what_nobody_knows_is_a_problem_with_a_code(
    admin: httpx.Client, ranks: Ranks, path: str
) -> None:
    answer = admin.get(f"/api/jobs/nobody{path}")

    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert set(answer.json()) >= PROBLEM
    assert answer.json()["type"] == "urn:torchloom:problem:not_found"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=ten", "limit"),
        ("cursor=x", "cursor"),
        ("cursor=WzEsMl0", "cursor"),
        ("state=ASLEEP", "state.0"),
        ("since=yesterday", "since"),
        ("until=1e400", "until"),
    ],
)
def test_a_query_that_does_not_fit_is_refused_by_its_field(
    admin: httpx.Client, query: str, field: str
) -> None:
    answer = admin.get(f"/api/jobs?{query}")

    problem = answer.json()
    assert (answer.status_code, problem["field"]) == (422, field)
    assert problem["remedy"]


def test_filters_leave_out_what_they_say(admin: httpx.Client, ranks: Ranks) -> None:
    def found(query: str) -> list[str]:
        return [job["id"] for job in admin.get(f"/api/jobs?{query}").json()["items"]]

    fitting = ("state=RUNNING", "state=FAILED&state=RUNNING", "owner=ada", "name=gpt")
    others = ("state=FAILED", "owner=bob", "name=bert", "project=p", "tag=t")

    assert [found(query) for query in (*fitting, "since=2020-01-01T00:00:00Z")] == [["job-1"]] * 5
    assert [found(query) for query in (*others, "until=2020-01-01", "since=99999999999")] == [
        []
    ] * 7


def test_halves_of_letters_and_odd_numbers_are_told_all_the_same(
    plane: Plane, admin: httpx.Client, ranks: Ranks
) -> None:
    """A program's words, cut in the middle, as a launch process notes them."""
    with contextlib.closing(sqlite3.connect(plane.home / "plane" / "state.db", timeout=30)) as base:
        base.execute(
            "INSERT INTO events (time, job, kind, rank, author, reason, facts)"
            " VALUES (1e10, 'job-1', 'odd', 0, 'ada', '', ?)",
            (r'{"words": "cut \udc80", "loss": NaN, "pair": "\ud83d\ude00"}',),
        )
        base.commit()

    answers = [admin.get(f"/api/jobs/job-1/{name}") for name in ("events", "audit")]

    assert [answer.status_code for answer in answers] == [200, 200]
    for answer in answers:
        facts = answer.json()["items"][-1]["facts"]
        assert facts == {"words": "cut ?", "loss": None, "pair": "\U0001f600"}
