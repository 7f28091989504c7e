"""Curves over HTTP, of numbers that ranks told a real weaver."""

import math
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ...harness.home import until
from ...harness.metric_rows import replaced_in_file
from ...harness.metric_senders import Teller
from ...harness.server_plane import PATIENCE, Plane, Server

pytestmark = pytest.mark.process

JOB, STEPS = "curved", 1000


def loss(step: int) -> float:
    return math.sin(step / 7) * 1000 / (step + 1)


@pytest.fixture(scope="module")
def teller(plane: Plane) -> Iterator[Teller]:
    with Teller(plane, JOB) as one:
        for first in range(0, STEPS, 100):
            rows = [(step, {"loss": loss(step), "lr": 0.1}) for step in range(first, first + 100)]
            one.tell(0, *rows)
        one.tell(1, (0, {"loss": 1.0}), (1, {"loss": math.nan}), (2, {"loss": math.inf}))
        until(one.is_stored, PATIENCE)
        yield one


def curves(admin: httpx.Client, **words: Any) -> list[dict[str, Any]]:
    answer = admin.get(f"/api/jobs/{JOB}/metrics", params=words)
    answer.raise_for_status()
    found: list[dict[str, Any]] = answer.json()["series"]
    return found


def test_buckets_have_the_least_the_greatest_and_the_last_of_their_steps(
    admin: httpx.Client, teller: Teller
) -> None:
    (curve,) = curves(admin, name="loss", rank=0, buckets=37)

    columns = ("steps", "first_steps", "times", "min", "max", "last", "counts", "nans")
    assert {len(curve[name]) for name in columns} == {len(curve["steps"])}
    assert 10 <= len(curve["steps"]) <= 37
    for number, (first, last) in enumerate(zip(curve["first_steps"], curve["steps"], strict=True)):
        values = [loss(step) for step in range(first, last + 1)]
        assert (curve["min"][number], curve["max"][number]) == (min(values), max(values))
        assert (curve["last"][number], curve["counts"][number]) == (values[-1], len(values))
    assert (sum(curve["counts"]), curve["steps"][-1]) == (STEPS, STEPS - 1)


def test_a_job_has_all_its_series_unless_some_are_named(
    admin: httpx.Client, teller: Teller
) -> None:
    answer = admin.get(f"/api/jobs/{JOB}/metrics").json()

    assert (answer["job"], answer["names"], answer["next"]) == (JOB, ["loss", "lr"], None)
    shown = [(each["name"], each["rank"]) for each in answer["series"]]
    assert shown == [("loss", 0), ("loss", 1), ("lr", 0)]


def test_a_range_of_steps_is_exact(admin: httpx.Client, teller: Teller) -> None:
    (curve,) = curves(admin, name="loss", rank=0, first=100, last=299, buckets=1000)

    assert curve["steps"] == list(range(100, 300))
    assert curve["last"] == [loss(step) for step in range(100, 300)]


def test_a_range_of_time_has_the_steps_that_were_done_then(
    admin: httpx.Client, teller: Teller
) -> None:
    (whole,) = curves(admin, name="loss", rank=0, buckets=STEPS)
    first, last = whole["times"][250], whole["times"][749]

    (curve,) = curves(admin, name="loss", rank=0, since=first, until=last, buckets=STEPS)

    inside = [n for n, at in enumerate(whole["times"]) if first <= at <= last]
    assert curve["steps"] == inside
    assert curves(admin, since=time.time() + 1000) == []
    assert curves(admin, until=1) == []


def test_points_come_page_by_page_and_none_is_left_out(admin: httpx.Client, teller: Teller) -> None:
    found: list[tuple[int, float]] = []
    cursor = None
    for _ in range(20):
        words = {"raw": True, "name": "loss", "rank": 0, "limit": 130}
        params = {**words, **({"cursor": cursor} if cursor else {})}
        page = admin.get(f"/api/jobs/{JOB}/metrics", params=params).json()
        for series in page["series"]:
            found += zip(series["steps"], series["values"], strict=True)
        if (cursor := page["next"]) is None:
            break

    assert found == [(step, loss(step)) for step in range(STEPS)]


def test_what_is_no_number_is_null(admin: httpx.Client, teller: Teller) -> None:
    (curve,) = curves(admin, raw=True, name="loss", rank=1)

    assert (curve["steps"], curve["values"]) == ([0, 1, 2], [1.0, None, None])


def test_steps_that_a_later_generation_repeats_are_those_of_before_too_where_asked_for(
    plane: Plane, server: Server, admin: httpx.Client
) -> None:
    path = "/api/jobs/repeated/metrics"
    for generation, first in ((1, 0), (2, 5)):
        with Teller(plane, "repeated", 1, generation=generation) as teller:
            rows = [(step, {"loss": step + generation / 10}) for step in range(first, 10)]
            teller.tell(0, *rows)
            until(teller.is_stored, PATIENCE)

    (plain,) = admin.get(path).json()["series"]
    (curve,) = admin.get(path, params={"replaced": True}).json()["series"]

    (older,) = curve["replaced"]
    stored = plane.home / "plane" / "records.db"
    kept = {place[4]: its for place, its in replaced_in_file(stored).items() if "repeated" in place}
    assert curve["last"] == [*(n + 0.1 for n in range(5)), *(n + 0.2 for n in range(5, 10))]
    assert (older["generation"], older["steps"]) == (1, [5, 6, 7, 8, 9])
    assert older["last"] == older["min"] == older["max"] == [n + 0.1 for n in range(5, 10)]
    assert {step: (its[1].time, its[1].value) for step, its in kept.items()} == {
        step: (time, value)
        for step, time, value in zip(older["steps"], older["times"], older["last"], strict=True)
    }
    assert [list(its) for its in kept.values()] == [[1]] * 5
    assert plain == {**curve, "replaced": []}
    assert curve["has_replaced"]
    (part,) = admin.get(path, params={"replaced": True, "first": 7, "buckets": 1}).json()["series"]
    (older,) = part["replaced"]
    assert (older["first_steps"], older["steps"], older["counts"]) == ([7], [9], [3])
    assert server.client("").get(path, params={"replaced": True}).status_code == 401


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        ({"raw": True, "replaced": True}, 422, "bad_value"),
        ({"raw": True, "cursor": "x"}, 422, "bad_cursor"),
        ({"first": 9, "last": 3}, 422, "bad_value"),
        ({"buckets": 0}, 422, "bad_value"),
        ({"first": 10**30}, 422, "bad_value"),
        ({"since": "x"}, 422, "bad_value"),
        ({"rank": "x"}, 422, "bad_value"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(
    admin: httpx.Client, teller: Teller, words: dict[str, Any], status: int, code: str
) -> None:
    answer = admin.get(f"/api/jobs/{JOB}/metrics", params=words)

    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_a_job_that_nobody_knows_has_no_curves(admin: httpx.Client) -> None:
    assert admin.get("/api/jobs/nobody/metrics").status_code == 404
