"""A running job is changed over HTTP: at one step, once for a key, with its author."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from ...harness.server_plane import Plane, Ranks, Server

pytestmark = pytest.mark.process
URL = "/api/jobs/job-1/commands"


@pytest.fixture(scope="module")
def ranks(plane: Plane, server: Server) -> Iterator[Ranks]:
    with Ranks(plane) as living:
        yield living


def ask(client: httpx.Client, key: str | None = None, **body: Any) -> httpx.Response:
    return client.post(URL, json=body, headers={"Idempotency-Key": key} if key else {})


def test_set_acts_on_every_rank_and_is_audited_with_its_author(
    admin: httpx.Client, ranks: Ranks
) -> None:
    answer = ask(admin, verb="set", values={"lr": 0.05}, reason="too hot")

    done = answer.json()
    assert (answer.status_code, done["state"], done["author"]) == (200, "applied", "admin")
    assert [(rank["rank"], rank["state"]) for rank in done["ranks"]] == [
        (0, "applied"),
        (1, "applied"),
    ]
    assert {rank.applied[-1][2] for rank in ranks.agent.ranks.values()} == {0.05}
    assert admin.get(f"{URL}/{done['id']}").json()["id"] == done["id"]
    listed = admin.get(URL).json()["items"]
    assert [one["id"] for one in listed][-1] == done["id"]
    audited = admin.get("/api/jobs/job-1/audit").json()["items"]
    assert {event["author"] for event in audited} == {"admin"}
    assert done["id"] in {event["facts"].get("command") for event in audited}


def test_one_key_is_one_command_whoever_asks_at_once(admin: httpx.Client, ranks: Ranks) -> None:
    before = len(admin.get(URL).json()["items"])

    with ThreadPoolExecutor(4) as threads:
        answers = list(
            threads.map(lambda _: ask(admin, "k1", verb="set", values={"lr": 0.2}), range(8))
        )
    again = ask(admin, "k1", verb="set", values={"lr": 0.2})

    assert {answer.status_code for answer in (*answers, again)} == {200}
    assert len({answer.json()["id"] for answer in (*answers, again)}) == 1
    assert len(admin.get(URL).json()["items"]) == before + 1


def test_one_key_for_another_command_is_refused(admin: httpx.Client, ranks: Ranks) -> None:
    ask(admin, "k2", verb="set", values={"lr": 0.3})

    other = ask(admin, "k2", verb="set", values={"lr": 0.4})

    assert (other.status_code, other.json()["code"]) == (409, "key_reused")
    assert {rank.applied[-1][2] for rank in ranks.agent.ranks.values()} == {0.3}


def test_undo_with_a_key_is_done_once(admin: httpx.Client, ranks: Ranks) -> None:
    ask(admin, verb="set", values={"lr": 0.6})

    first, second = (ask(admin, "k3", verb="undo") for _ in range(2))

    assert (first.status_code, second.status_code) == (200, 200)
    assert first.json()["id"] == second.json()["id"]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"verb": "explode"}, 422, "verb"),
        ({"verb": "set"}, 422, "values"),
        ({"verb": "set", "values": {"lr": {}}}, 422, "values.lr.bool"),
        ({"verb": "set", "values": {"lr": 0.1}, "author": "eve"}, 422, "author"),
        ({"verb": "pause", "values": {"lr": 1}}, 422, "values"),
        ({"verb": "set", "values": {"lr": 0.1}, "wait": 1e9}, 422, "wait"),
        ({"verb": "set", "values": {"lr": 7}}, 422, None),
        ({"verb": "set", "values": {"lrr": 0.1}}, 404, None),
        ([], 422, "body"),
    ],
)
def test_what_does_not_fit_is_refused_and_does_nothing(
    admin: httpx.Client, ranks: Ranks, body: Any, status: int, field: str | None
) -> None:
    before = admin.get(URL).json()

    answer = admin.post(URL, json=body)

    assert (answer.status_code, answer.json().get("field")) == (status, field)
    assert admin.get(URL).json() == before


def test_commands_are_read_page_by_page(admin: httpx.Client, ranks: Ranks) -> None:
    for value in (0.1, 0.2, 0.3):
        ask(admin, verb="set", values={"lr": value})
    whole = [one["id"] for one in admin.get(URL).json()["items"]]

    pages, cursor = [], None
    while True:
        query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = admin.get(URL, params=query).json()
        pages.append([one["id"] for one in page["items"]])
        cursor = page["next"]
        if cursor is None:
            break

    assert [one for page in pages for one in page] == whole
    assert {len(page) for page in pages[:-1]} == {2}


def test_a_stop_ends_the_job_and_its_key_answers_the_same_afterwards(
    plane: Plane, admin: httpx.Client
) -> None:
    with Ranks(plane, "job-2", "bert"):
        url = "/api/jobs/job-2/commands"
        first = admin.post(url, json={"verb": "stop"}, headers={"Idempotency-Key": "s"})
        again = admin.post(url, json={"verb": "stop"}, headers={"Idempotency-Key": "s"})

    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json()["id"] == again.json()["id"]
