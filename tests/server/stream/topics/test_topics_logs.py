"""Logs on a page's socket: the lines of the API, each once, whatever becomes of the connection."""

import itertools
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from torchloom.specs.api import AppState

from ....harness.metric_senders import Launched, Teller
from ....harness.server_plane import Plane, Server
from ...following import Page

pytestmark = pytest.mark.process

_COUNT = itertools.count()


@pytest.fixture
def job(plane: Plane, server: Server) -> Iterator[str]:
    with Teller(plane, f"lines-{next(_COUNT)}") as teller:
        yield teller.job


@pytest.fixture
def launched(plane: Plane, job: str) -> Launched:
    return Launched(plane, job)


def messages(page: Page, name: str) -> list[str]:
    return [item["message"] for item in page.state[name]["items"]]


def shown(page: Page, name: str) -> list[dict[str, Any]]:
    """Return the lines of a page as the API has them, by output; keys are its own."""
    items = page.state[name]["items"]
    assert len({item["key"] for item in items}) == len(items)
    lines = ({key: item[key] for key in item if key != "key"} for item in items)
    return sorted(lines, key=_output)


def printed(admin: httpx.Client, job: str, **query: Any) -> list[dict[str, Any]]:
    """Return the lines that the API has, by output."""
    answer = admin.get(f"/api/jobs/{job}/logs", params=query)
    return sorted(answer.json()["items"], key=_output)


def _output(item: dict[str, Any]) -> tuple[int, str]:
    return item["rank"], item["stream"]


def test_lines_on_a_page_are_those_of_the_api_over_a_lost_connection(
    plane: Plane, server: Server, admin: httpx.Client, job: str, launched: Launched
) -> None:
    page = Page()
    launched.print(0, "stdout", "one\ntwo\n")

    with page.open(server):
        page.sub("l", "logs", job)
        page.until(lambda page: messages(page, "l") == ["one", "two"])
        launched.print(1, "stderr", "WARNING three\nhalf of")
        page.until(lambda page: len(messages(page, "l")) == 3)
    before = page.cursor["l"]
    launched.print(1, "stderr", " a line\n")
    launched.print(0, "stdout", "five\n")
    with page.open(plane.start_server()):
        page.until(lambda page: len(messages(page, "l")) == 5)
        launched.print(0, "stderr", "the last, without an end")
        launched.write(AppState.SUCCEEDED)
        page.until(lambda page: len(messages(page, "l")) == 6)

    assert page.said("l").count("snapshot") == 1
    assert shown(page, "l") == printed(admin, job)
    missed = {item["message"] for item in printed(admin, job, cursor=before)}
    assert missed == {"half of a line", "five", "the last, without an end"}
    assert printed(admin, job, cursor=page.cursor["l"]) == []


def test_lines_are_chosen_by_rank_level_and_pattern_at_first_and_as_they_come(
    server: Server, admin: httpx.Client, job: str, launched: Launched
) -> None:
    page = Page()
    wishes: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of the socket, of the API
        "rank": ({"ranks": [1]}, {"rank": 1}),
        "level": ({"level": "warning"}, {"level": "warning"}),
        "regex": ({"regex": r"loss \d{2}"}, {"regex": r"loss \d{2}"}),
        "both": ({"ranks": [0], "regex": "loss"}, {"rank": 0, "regex": "loss"}),
    }
    for rank in range(2):
        launched.print(rank, "stdout", f"loss 0.5 of {rank}\nWARNING loss 12 of {rank}\n")

    with page.open(server):
        for name, (wish, _) in wishes.items():
            page.sub(name, "logs", job, **wish)
        page.until(lambda page: page.state.keys() >= wishes.keys())
        for rank in range(2):
            launched.print(rank, "stderr", f"INFO loss 34 of {rank}\nbad {rank}\n")
        page.until(lambda page: "bad 1" in messages(page, "rank"))
        page.until(lambda page: {"bad 0", "bad 1"} <= set(messages(page, "level")))
        page.until(lambda page: len(messages(page, "regex")) == 4)
        page.until(lambda page: len(messages(page, "both")) == 3)

    found = {name: shown(page, name) for name in wishes}
    assert found == {name: printed(admin, job, **query) for name, (_, query) in wishes.items()}


def test_of_many_lines_a_page_gets_the_newest_and_is_told_that_there_are_others(
    server: Server, job: str, launched: Launched
) -> None:
    page = Page()
    text = "".join(f"line {number} {'x' * 200}\n" for number in range(6000))
    launched.print(0, "stdout", text)
    launched.print(1, "stdout", "needle\n" + text)

    with page.open(server):
        page.sub("l", "logs", job, limit=100)
        page.sub("n", "logs", job, regex="needle")
        page.until(lambda page: page.state.keys() >= {"l", "n"})
        page.cursor["l"] = "...e30"  # from the beginning: too far for line by line
        page.sub("l", "logs", job, limit=100)
        page.until(lambda page: page.said("l").count("snapshot") == 2)

        page.sub("w", "logs", job, limit=5000)
        page.until(lambda page: "w" in page.state)

    wide = messages(page, "w")
    assert 1000 < len(wide) < 5000  # as many as a page can take at once
    lasts = [message.split()[1] for message in messages(page, "l")]
    assert lasts[-1] == "5999"
    assert (len(lasts), page.state["l"]["older"]) == (100, True)
    assert (messages(page, "n"), page.state["n"]["older"]) == (["needle"], False)


def test_a_pattern_that_is_none_is_said_in_words_and_the_others_go_on(
    server: Server, job: str, launched: Launched
) -> None:
    page = Page()
    with page.open(server):
        page.sub("b", "logs", job, regex="loss (")
        page.sub("s", "logs", job, regex="x" * 1001)
        page.sub("l", "logs", job, regex="loss")
        page.until(lambda page: "l" in page.state and len(refused(page)) == 2)
        launched.print(0, "stdout", "loss 1\nother\n")
        page.until(lambda page: messages(page, "l") == ["loss 1"])

    assert {name: problem["code"] for name, problem in refused(page).items()} == {
        "b": "bad_pattern",
        "s": "bad_pattern",
    }
    assert "this is not a regular expression: missing )" in refused(page)["b"]["detail"]


def refused(page: Page) -> dict[str, dict[str, Any]]:
    return {one["id"]: one["problem"] for one in page.heard if one["kind"] == "error"}
