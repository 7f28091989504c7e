"""One socket a page: topics of a real plane, from cursors on, over restarts, and for whom."""

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from ....harness.home import allowed, until
from ....harness.metric_senders import Teller
from ....harness.server_plane import PATIENCE, Plane, Server
from ...following import Page
from ...listening import listening

pytestmark = pytest.mark.process

_COUNT = itertools.count()


@pytest.fixture
def teller(plane: Plane, server: Server) -> Iterator[Teller]:
    with Teller(plane, f"topic-{next(_COUNT)}") as one:
        yield one


def tell(teller: Teller, first: int, last: int, rank: int = 0) -> None:
    """Have a rank log steps, one record each."""
    for step in range(first, last + 1):
        teller.tell(rank, (step, {"loss": 1.0 / step, "lr": 0.1}))


def charted(admin: httpx.Client, job: str, **query: Any) -> list[dict[str, Any]]:
    """Return what the route of metrics says, by series."""
    found = admin.get(f"/api/jobs/{job}/metrics", params=query).json()["series"]
    return sorted(found, key=lambda one: (one["name"], one["rank"]))


def shown(page: Page, name: str) -> list[dict[str, Any]]:
    found = page.state[name]["series"]
    return sorted(found, key=lambda one: (one["name"], one["rank"]))


def test_curves_on_a_page_are_those_of_the_api_whatever_happens_to_server_and_socket(
    plane: Plane, server: Server, admin: httpx.Client, teller: Teller
) -> None:
    page, other = Page(), plane.start_server()
    tell(teller, 1, 5)
    until(teller.is_stored, PATIENCE)

    with page.open(server):
        page.sub("c", "series", teller.job, buckets=500)
        page.until(lambda page: page.state["c"]["series"])
        tell(teller, 6, 10)
        tell(teller, 1, 3, rank=1)
        page.until(lambda page: page.curve("c")["steps"][-1] == 10)
        page.until(lambda page: page.curve("c", rank=1)["steps"] == [1, 2, 3])
    tell(teller, 11, 15)
    until(teller.is_stored, PATIENCE)
    other.process.end()
    later = plane.start_server()
    with page.open(later):
        page.until(lambda page: page.curve("c")["steps"][-1] == 15)
        missed = page.heard[-1]
        tell(teller, 16, 16)
        page.until(lambda page: page.curve("c")["steps"][-1] == 16)

    assert page.said("c").count("snapshot") == 1
    assert [one["steps"] for one in missed["data"]["points"]] == [[11, 12, 13, 14, 15]] * 2
    assert shown(page, "c") == charted(admin, teller.job, buckets=500)


def test_steps_that_are_repeated_and_points_that_are_many_come_as_a_new_whole(
    server: Server, admin: httpx.Client, teller: Teller
) -> None:
    page = Page()
    tell(teller, 1, 10)
    until(teller.is_stored, PATIENCE)

    with page.open(server):
        page.sub("c", "series", teller.job, names=["loss"], buckets=20)
        page.until(lambda page: page.curve("c")["steps"][-1] == 10)
        teller.tell(0, (8, {"loss": 0.5}))
        page.until(lambda page: page.said("c").count("snapshot") == 2)
        repeated = page.curve("c")["last"][7]
        tell(teller, 11, 60)
        page.until(lambda page: page.curve("c")["steps"][-1] == 60)

    kinds = page.said("c")
    assert repeated in (1 / 8, 0.5)  # of one generation either may stand
    assert kinds.count("snapshot") >= 3
    assert (
        max(len(each["data"]["series"][0]["steps"]) for each in page.heard if _is_whole(each)) <= 20
    )
    assert len(page.curve("c")["steps"]) <= 40
    assert sum(page.curve("c")["counts"]) == 60
    assert page.state["c"]["series"][0]["name"] == "loss"
    assert len(page.state["c"]["series"]) == 1


def test_a_page_that_asks_for_it_has_what_a_later_generation_replaced(
    plane: Plane, server: Server, admin: httpx.Client
) -> None:
    page = Page()
    with Teller(plane, "topic-again", 1, generation=1) as teller:
        tell(teller, 1, 10)
        until(teller.is_stored, PATIENCE)
    with page.open(server):
        page.sub("c", "series", "topic-again", names=["loss"], replaced=True)
        page.sub("d", "series", "topic-again", names=["loss"])
        page.until(lambda page: page.state["c"] and page.state["d"])
        before = (page.curve("c")["has_replaced"], page.curve("c")["replaced"])
        with Teller(plane, "topic-again", 1, generation=2) as teller:
            tell(teller, 8, 11)
            page.until(lambda page: page.curve("c")["steps"][-1] == 11)
            page.until(lambda page: page.curve("d")["steps"][-1] == 11)

    (older,) = page.curve("c")["replaced"]
    assert before == (False, [])
    assert (older["generation"], older["steps"]) == (1, [8, 9, 10])
    assert older["last"] == [1 / 8, 1 / 9, 1 / 10]
    assert shown(page, "c") == charted(admin, "topic-again", name="loss", replaced=True)
    assert shown(page, "d") == charted(admin, "topic-again", name="loss")
    assert (page.curve("d")["has_replaced"], page.curve("d")["replaced"]) == (True, [])


def _is_whole(said: dict[str, Any]) -> bool:
    return said.get("id") == "c" and said["kind"] == "snapshot"


def test_a_range_of_a_curve_has_its_points_and_hears_of_no_others(
    server: Server, admin: httpx.Client, teller: Teller
) -> None:
    page = Page()
    tell(teller, 1, 40)
    until(teller.is_stored, PATIENCE)

    with page.open(server):
        page.sub("all", "series", teller.job, names=["loss"], buckets=10)
        page.sub("c", "series", teller.job, names=["loss"], buckets=100, first=31, last=42)
        page.until(lambda page: page.curve("all")["steps"][-1] == 40 and page.state["c"])
        before = list(page.curve("c")["steps"])
        tell(teller, 41, 45)
        tell(teller, 1, 3, rank=1)
        page.until(lambda page: page.curve("all")["steps"][-1] == 45)
        page.until(lambda page: page.curve("all", rank=1)["steps"][-1] == 3)
        page.until(lambda page: page.curve("c")["steps"][-1] == 42)
        page.sub("w", "series", teller.job, first=9, last=3)
        page.until(lambda page: _refused(page))

    assert before == list(range(31, 41))
    assert shown(page, "c") == charted(admin, teller.job, name="loss", first=31, last=42)
    assert len(page.state["c"]["series"]) == 1  # nothing of rank 1 is there
    assert _refused(page) == {"w": "bad_value"}


def test_ranks_over_time_are_what_each_of_them_told_in_the_same_stretches(
    server: Server, admin: httpx.Client, teller: Teller
) -> None:
    page = Page()
    name = "loom/step_seconds"
    for step in range(1, 21):
        for rank in (0, 1):
            teller.tell(rank, (step, {name: 0.1 * step + rank}))
    until(teller.is_stored, PATIENCE)

    with page.open(server):
        page.sub("h", "heat", teller.job, span=600, buckets=300)
        page.until(lambda page: "h" in page.state)
        whole = page.state["h"]
        teller.tell(1, (21, {name: 77.0}))
        page.until(lambda page: _cells(page, "h")[-1][3] == 77.0)

    assert (whole["name"], whole["width"], whole["columns"], whole["left_out"]) == (name, 2, 300, 0)
    told = {
        line["rank"]: _told(admin, teller.job, name, line["rank"], 2) for line in whole["lines"]
    }
    for line in whole["lines"]:
        known = {whole["start"] + at: v for at, v in enumerate(line["values"]) if v is not None}
        expected = {slot: v for slot, v in told[line["rank"]].items() if v != 77.0}
        assert {slot: known[slot] for slot in expected} == pytest.approx(expected, rel=0.01)
    assert [line["rank"] for line in whole["lines"]] == [0, 1]
    rank, _, slot, value = _cells(page, "h")[-1]
    assert (rank, value, told[1][slot]) == (1, 77.0, 77.0)


def _cells(page: Page, name: str) -> list[list[Any]]:
    said = [each for each in page.heard if each.get("id") == name and each["kind"] == "delta"]
    return [cell for each in said for cell in each["data"]["cells"]]


def _told(admin: httpx.Client, job: str, name: str, rank: int, width: int) -> dict[int, float]:
    """Return the greatest of each stretch of time, from every point that the API has."""
    (found,) = charted(admin, job, name=name, rank=rank, raw=True)
    cells: dict[int, float] = {}
    for at, value in zip(found["times"], found["values"], strict=True):
        cells[int(at // width)] = max(value, cells.get(int(at // width), value))
    return cells


def test_a_cursor_that_is_far_behind_or_of_nowhere_begins_with_the_whole(
    server: Server, teller: Teller
) -> None:
    tell(teller, 1, 40)
    until(teller.is_stored, PATIENCE)

    for cursor in ("..1", "..99999999999", "5.5."):
        page = Page()
        page.cursor["c"] = cursor
        with page.open(server):
            page.sub("c", "series", teller.job, names=["loss"])
            page.until(lambda page: page.curve("c")["steps"][-1] == 40)
        assert page.said("c") == ["snapshot"]


def test_a_timeline_has_every_event_once_over_a_lost_connection(
    server: Server, teller: Teller
) -> None:
    page = Page()
    teller.happens(0, "custom", 1)
    until(teller.is_stored, PATIENCE)

    with page.open(server):
        page.sub("t", "timeline", teller.job)
        page.until(lambda page: page.state["t"]["items"])
        teller.happens(1, "nan", 2, name="loss")
        page.until(lambda page: "loss is not finite" in titles(page))
    teller.happens(0, "custom", 3)
    until(teller.is_stored, PATIENCE)
    with page.open(server):
        page.until(lambda page: titles(page).count("custom") == 2)
        teller.ends("FAILED", "exit_signal_9_rank_1")
        page.until(lambda page: "FAILED" in titles(page))
    fresh = Page()
    with fresh.open(server):
        fresh.sub("t", "timeline", teller.job)
        fresh.until(lambda page: page.state["t"]["items"])

    items = page.state["t"]["items"]
    told = [(one["kind"], one["what"], one["step"]) for one in items if one["key"][0] == "r"]
    assert told == [("event", "custom", 1), ("alert", "nan", 2), ("event", "custom", 3)]
    ended = [one["reason"] for one in items if one["title"] == "FAILED"]
    assert ended == ["exit_signal_9_rank_1"]
    assert len({one["key"] for one in items}) == len(items)
    known = [one for one in fresh.state["t"]["items"] if is_before(one, page.cursor["t"])]
    assert sorted(map(json.dumps, items)) == sorted(map(json.dumps, known))
    assert page.said("t").count("snapshot") == 1


def is_before(entry: dict[str, Any], cursor: str) -> bool:
    """Tell whether a page that stands there must have an entry."""
    happened, told, _ = cursor.split(".")
    return bool(entry["seq"] <= int(happened if entry["key"][0] == "w" else told))


def titles(page: Page) -> list[str]:
    return [one["title"] for one in page.state["t"]["items"]]


def test_a_change_is_told_with_its_author_and_each_ranks_word(
    server: Server, admin: httpx.Client, teller: Teller
) -> None:
    page = Page()
    with page.open(server):
        page.sub("t", "timeline", teller.job)
        page.sub("a", "commands", teller.job)
        page.sub("j", "job", teller.job)
        page.until(lambda page: page.state.keys() >= {"t", "a", "j"})
        asked = {"verb": "set", "values": {"lr": 0.02}, "reason": "too hot", "wait": 0}
        made = admin.post(f"/api/jobs/{teller.job}/commands", json=asked).json()
        page.until(lambda page: page.state["a"]["items"][0]["state"] == "applied")
        page.until(lambda page: "lr 0.1 -> 0.02" in titles(page))
        page.until(lambda page: page.state["j"]["knobs"][0]["value"] == 0.02)

    (command,) = page.state["a"]["items"]
    (entry,) = (one for one in page.state["t"]["items"] if one["kind"] == "knob")
    acks = [(one["rank"], one["state"], one["before"], one["after"]) for one in command["ranks"]]
    assert command["id"] == made["id"]
    assert acks == [(0, "applied", 0.1, 0.02), (1, "applied", 0.1, 0.02)]
    known = admin.get(f"/api/jobs/{teller.job}/commands/{made['id']}").json()
    assert {**command, "checkpoint": None} == known
    named = ("title", "author", "reason", "before", "after", "command")
    assert tuple(entry[name] for name in named) == (
        *("lr 0.1 -> 0.02", "admin", "too hot"),
        *(0.1, 0.02, made["id"]),
    )


def test_the_list_and_the_page_of_a_job_follow_its_state(
    server: Server, admin: httpx.Client, teller: Teller
) -> None:
    page = Page()
    tell(teller, 1, 3)
    until(teller.is_stored, PATIENCE)

    with page.open(server):
        page.sub("l", "jobs")
        page.sub("j", "job", f"name-of-{teller.job}")
        page.until(lambda page: _row(page, teller.job)["spark"] and page.state["j"])
        before, detail = _row(page, teller.job), dict(page.state["j"])
        teller.ends("FAILED", "exit_signal_9_rank_1")
        page.until(lambda page: _row(page, teller.job)["state"] == "FAILED")
        page.until(lambda page: page.state["j"]["verbs"] == ["resume"])

    assert (before["state"], before["owner"], before["spark_name"]) == ("RUNNING", "ada", "loss")
    assert before["spark"] == [1.0, 0.5, 0.33333]
    assert detail["clocks"]["process"]["detail"] == "2 of 2 ranks are up"
    assert detail["metrics"] == ["loss", "lr"]
    assert "pause" in detail["verbs"]
    assert [knob["name"] for knob in detail["knobs"]] == ["lr"]
    assert page.state["j"]["clocks"]["process"]["state"] == "over"
    listed = admin.get("/api/jobs").json()["items"]
    assert [row["id"] for row in page.state["l"]["items"]] == [job["id"] for job in listed]


def _row(page: Page, job: str) -> dict[str, Any]:
    return next(row for row in page.state["l"]["items"] if row["id"] == job)


def test_a_page_hears_who_it_is_and_that_the_plane_lives(
    plane: Plane, server: Server, admin: httpx.Client, teller: Teller
) -> None:
    page = Page()
    with page.open(server, _token(admin, "vera", "viewer")):
        page.sub("j", "job", teller.job)
        page.until(lambda page: page.heard[-1]["kind"] == "beat" and "j" in page.state)
        well = page.heard[-1]
        plane.weaver.end()
        page.until(lambda page: page.heard[-1].get("weaver") is False)
        away = page.heard[-1]
        plane.start_weaver()
        page.until(lambda page: page.heard[-1].get("weaver") is True)

    first = page.heard[0]
    assert (first["kind"], first["user"], first["role"]) == ("hello", "vera", "viewer")
    assert (well["behind"], well["weaver"]) == (0.0, True)
    assert (away["behind"] >= 0.0, away["weaver"]) == (True, False)
    assert page.state["j"]["verbs"] == []  # a viewer is offered nothing


def _token(admin: httpx.Client, user: str, role: str) -> str:
    admin.put(f"/api/users/{user}", json={"role": role}).raise_for_status()
    return str(admin.post("/api/tokens", json={"user": user}).json()["token"])


def test_what_cannot_be_followed_is_refused_and_the_others_go_on(
    server: Server, teller: Teller
) -> None:
    page = Page()
    wrong = {
        "n": ("job", "nobody", "not_found"),
        "m": ("series", "", "bad_value"),
        "o": ("timeline", teller.job, "bad_cursor"),
    }
    page.cursor["o"] = "nonsense"
    with page.open(server):
        for name, (topic, job, _) in wrong.items():
            page.sub(name, topic, job)
        page.sub("l", "jobs")
        page.until(lambda page: "l" in page.state and len(_refused(page)) == len(wrong))
        page.sub("s", "series", teller.job)
        page.until(lambda page: "s" in page.state)
        page.unsub("s")
        tell(teller, 1, 2)
        page.sub("s", "series", teller.job)
        page.until(lambda page: page.curve("s")["steps"] == [1, 2])

    assert _refused(page) == {name: code for name, (_, _, code) in wrong.items()}


def _refused(page: Page) -> dict[str, str]:
    return {one["id"]: one["problem"]["code"] for one in page.heard if one["kind"] == "error"}


@pytest.mark.parametrize("text", ["hello", "{}", '{"op":"sub","id":"x","topic":"secrets"}'])
def test_whoever_says_something_else_is_let_go(server: Server, teller: Teller, text: str) -> None:
    page = Page()
    with page.open(server):
        page.socket.send(text)
        with pytest.raises(ConnectionClosed) as closed:
            page.until(lambda page: False)

    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1003


def test_a_revoked_token_ends_the_socket_of_its_page(
    server: Server, admin: httpx.Client, teller: Teller
) -> None:
    admin.put("/api/users/rita", json={"role": "viewer"}).raise_for_status()
    made = admin.post("/api/tokens", json={"user": "rita"}).json()
    page = Page()
    with page.open(server, made["token"]):
        page.sub("l", "jobs")
        page.until(lambda page: "l" in page.state)
        began = time.monotonic()
        admin.delete(f"/api/tokens/{made['id']}").raise_for_status()
        with pytest.raises(ConnectionClosed) as closed:
            page.until(lambda page: False)
        took = time.monotonic() - began

    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4401
    assert took < allowed(5.0)


def test_a_page_that_does_not_read_is_let_go_and_told_why(server: Server, teller: Teller) -> None:
    wide = {f"metric-{number:03}": 0.123456789 for number in range(200)}
    teller.tell(0, *((step, wide) for step in range(1, 101)))
    until(teller.is_stored, PATIENCE)
    page = Page()
    with listening(server, "/api/stream", max_queue=1, max_size=None, ping_interval=None) as client:
        page.socket = client.socket
        heard = 0.0
        for number in range(60):  # each wants more than a megabyte
            page.sub(f"c{number}", "series", teller.job)
            before, heard = heard, _listeners(server)
            if heard < before:
                break
        with pytest.raises(ConnectionClosed) as closed:
            page.until(lambda page: False)

    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason[:9]) == (1013, "too slow:")


def _listeners(server: Server) -> float:
    with server.client() as caller:
        text = caller.get("/metrics").text
    line = next(one for one in text.splitlines() if one.startswith("torchloom_stream_listeners "))
    return float(line.split()[1])
