"""Logs over HTTP, of folders as a launch leaves them; and that no pattern stops the server."""

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from torchloom.specs.api import AppState

from ...harness.home import allowed
from ...harness.metric_senders import Launched, Teller
from ...harness.server_plane import Plane, Server
from ..listening import listening

pytestmark = pytest.mark.process

_COUNT = itertools.count()
CATASTROPHE = "(x+x+)+y"


@pytest.fixture
def job(plane: Plane) -> Iterator[str]:
    with Teller(plane, f"printed-{next(_COUNT)}") as teller:
        yield teller.job


@pytest.fixture
def launched(plane: Plane, job: str) -> Launched:
    return Launched(plane, job)


def messages(answer: httpx.Response) -> list[str]:
    answer.raise_for_status()
    return [item["message"] for item in answer.json()["items"]]


def test_lines_of_all_ranks_come_with_all_that_is_known_of_them(
    admin: httpx.Client, job: str, launched: Launched
) -> None:
    launched.print(1, "stderr", "WARNING slow\n")

    (item,) = admin.get(f"/api/jobs/{job}/logs").json()["items"]

    assert item.pop("time").startswith("20")
    assert item == {
        "rank": 1,
        "role": "trainer",
        "stream": "stderr",
        "level": "warning",
        "message": "WARNING slow",
    }


def test_lines_are_chosen_by_rank_level_pattern_and_time(
    admin: httpx.Client, job: str, launched: Launched
) -> None:
    launched.print(0, "stdout", "loss 0.5\nloss 12.25\n")
    launched.print(1, "stderr", "INFO fine\nbad\n")
    path = f"/api/jobs/{job}/logs"

    found = {
        words: messages(admin.get(f"{path}?{words}"))
        for words in (
            "rank=0",
            "rank=1&level=warning",
            "regex=loss%20%5Cd%7B2%7D",
            "since=4e9",
            "until=1",
        )
        if not words.startswith("since")
    }

    assert found == {
        "rank=0": ["loss 0.5", "loss 12.25"],
        "rank=1&level=warning": ["bad"],
        "regex=loss%20%5Cd%7B2%7D": ["loss 12.25"],
        "until=1": [],
    }
    assert messages(admin.get(path, params={"since": "2099-01-01T00:00:00Z"})) == []
    assert len(messages(admin.get(path, params={"since": "2020-01-01T00:00:00Z"}))) == 4


def test_pages_go_on_while_the_job_prints_and_end_with_it(
    admin: httpx.Client, job: str, launched: Launched
) -> None:
    path, found, cursor = f"/api/jobs/{job}/logs", [], None
    expected = [f"line {number}" for number in range(25)]
    launched.print(0, "stdout", "".join(f"{line}\n" for line in expected[:12]))

    for turn in range(20):
        words: dict[str, Any] = {"limit": 5, **({"cursor": cursor} if cursor else {})}
        page = admin.get(path, params=words).json()
        found += [item["message"] for item in page["items"]]
        cursor = page["next"]
        if turn == 3:
            launched.print(0, "stdout", "".join(f"{line}\n" for line in expected[12:])[:-1])
            launched.write(AppState.SUCCEEDED)
        if cursor is None:
            break

    assert found == expected
    assert cursor is None


def test_pages_of_matches_have_each_once(admin: httpx.Client, job: str, launched: Launched) -> None:
    for rank in range(2):
        launched.print(rank, "stdout", "".join(f"r{rank} n{n}\n" for n in range(5000)))
    launched.write(AppState.SUCCEEDED)
    path, found, cursor = f"/api/jobs/{job}/logs", [], None

    while len(found) < 4000:
        words: dict[str, Any] = {"limit": 700, "regex": "n[0-9]*3$"}
        page = admin.get(path, params={**words, **({"cursor": cursor} if cursor else {})}).json()
        found += [item["message"] for item in page["items"]]
        if (cursor := page["next"]) is None:
            break

    assert sorted(found) == sorted(
        f"r{r} n{n}" for r in range(2) for n in range(5000) if n % 10 == 3
    )


def test_the_stream_goes_on_from_a_page(
    server: Server, admin: httpx.Client, job: str, launched: Launched
) -> None:
    launched.print(0, "stdout", "one\ntwo\n")
    page = admin.get(f"/api/jobs/{job}/logs", params={"tail": 1}).json()
    launched.print(0, "stdout", "three\n")

    with listening(server, f"/api/jobs/{job}/stream?types=log&after={page['next']}") as client:
        following = client.message()

    assert [item["message"] for item in page["items"]] == ["two"]
    assert following["message"] == "three"


def test_a_catastrophic_pattern_is_refused_while_the_server_serves_others(
    server: Server, admin: httpx.Client, job: str, launched: Launched
) -> None:
    launched.print(0, "stdout", "x" * 60 + "\n")
    path = f"/api/jobs/{job}/logs"

    with ThreadPoolExecutor() as pool, server.client() as other:
        refused = pool.submit(admin.get, path, params={"regex": CATASTROPHE})
        waits = []
        while not refused.done():
            began = time.monotonic()
            other.get("/healthz").raise_for_status()
            waits.append(time.monotonic() - began)

    problem = refused.result().json()
    assert (problem["status"], problem["code"]) == (422, "pattern_too_slow")
    assert max(waits) < allowed(1.0)
    assert len(waits) > 5


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({"regex": "("}, "bad_pattern"),
        ({"regex": "a" * 1001}, "bad_pattern"),
        ({"level": "loud"}, "bad_value"),
        ({"cursor": "x"}, "bad_cursor"),
        ({"since": "yesterday"}, "bad_value"),
        ({"limit": 0}, "bad_value"),
        ({"rank": "one"}, "bad_value"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(
    admin: httpx.Client, job: str, launched: Launched, words: dict[str, Any], code: str
) -> None:
    answer = admin.get(f"/api/jobs/{job}/logs", params=words)

    assert (answer.status_code, answer.json()["code"]) == (422, code)


def test_a_job_of_others_has_no_logs_here(admin: httpx.Client, job: str) -> None:
    answer = admin.get(f"/api/jobs/{job}/logs")

    assert (answer.status_code, answer.json()["items"]) == (200, [])
    assert admin.get("/api/jobs/nobody/logs").status_code == 404
