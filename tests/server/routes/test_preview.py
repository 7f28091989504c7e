"""What a command would do is told before it is asked for, and nothing is changed by that."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from torchloom.errors import LoomError
from torchloom.server.impact import Scene, command_line, outlook
from torchloom.weaver.store.rows import JobRow

from ...harness.server_plane import Plane, Ranks, Server

URL = "/api/jobs/job-1/commands"


@pytest.fixture(scope="module")
def ranks(plane: Plane, server: Server) -> Iterator[Ranks]:
    with Ranks(plane) as living:
        yield living


def look(client: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = client.post(f"{URL}/preview", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.process
def test_a_preview_says_what_would_change_where_and_about_when(
    admin: httpx.Client, ranks: Ranks
) -> None:
    before = admin.get(URL).json()

    found = look(admin, verb="set", values={"lr": 0.05}, reason="too hot")

    assert found["ok"] is True
    assert found["changes"] == [{"name": "lr", "before": 0.1, "after": 0.05}]
    assert (found["ranks"], found["refused"], found["warnings"]) == ([0, 1], None, [])
    assert found["effective_step"] > 10
    assert found["summary"] == (
        f"lr 0.1 -> 0.05, on 2 ranks, at about step {found['effective_step']}"
    )
    assert found["command"] == "loom set job-1 lr=0.05 --reason 'too hot'"
    assert admin.get(URL).json() == before
    assert all(not rank.applied for rank in ranks.agent.ranks.values())


@pytest.mark.process
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"verb": "set", "values": {"lr": 7}}, 422, "bad_value"),
        ({"verb": "set", "values": {"lrr": 0.1}}, 404, "not_found"),
        ({"verb": "set", "values": {"lr": 0.1}, "guard": "nonsense"}, 422, "bad_value"),
        ({"verb": "undo"}, 409, "nothing_to_undo"),
        ({"verb": "resume"}, 422, "not_resumable"),
        ({"verb": "resize", "workers": 4}, 422, "not_resizable"),
    ],
)
def test_a_refusal_is_the_one_that_the_command_would_get(
    admin: httpx.Client, ranks: Ranks, body: dict[str, Any], status: int, code: str
) -> None:
    found = look(admin, **body)
    real = admin.post(URL, json=body)

    assert (found["ok"], found["refused"]["status"], found["refused"]["code"]) == (
        *(False, status),
        code,
    )
    assert real.status_code == status
    assert found["summary"] == found["refused"]["detail"]


@pytest.mark.process
def test_a_viewer_may_look_and_is_told_that_it_would_be_refused(
    admin: httpx.Client, server: Server, ranks: Ranks
) -> None:
    admin.put("/api/users/vera", json={"role": "viewer"}).raise_for_status()
    token = admin.post("/api/tokens", json={"user": "vera"}).json()["token"]

    with server.client(token) as vera:
        found = look(vera, verb="pause")
        real = vera.post(URL, json={"verb": "pause"})

    assert (found["ok"], found["refused"]["code"]) == (False, "forbidden")
    assert (real.status_code, real.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ({"verb": "pause", "release": True, "at": 5}, "loom pause j --release --at 5"),
        ({"verb": "undo", "command": "c1"}, "loom set j --undo c1"),
        ({"verb": "cancel", "reason": "no use"}, "loom stop j --now --reason 'no use'"),
        ({"verb": "resize", "workers": 4, "at": 5}, "loom resize j 4 --at 5"),
        ({"verb": "resume", "workers": 2, "from_step": 9}, "loom resume j -n 2 --from 9"),
        (
            {"verb": "resume", "from_scratch": True, "until": 9, "unpause": True},
            "loom resume j --from-scratch --until 9",
        ),
        (
            {"verb": "set", "values": {"b": [0.9, 1], "s": "cosine"}, "guard": "loss>2", "span": 9},
            "loom set j 'b=[0.9, 1]' s=cosine --guard 'loss>2' --for 9",
        ),
    ],
)
def test_the_same_can_be_typed(asked: dict[str, Any], line: str) -> None:
    assert command_line("j", asked) == line


@pytest.mark.parametrize(
    ("state", "newest", "asked", "code"),
    [
        ("FAILED", None, {}, "no_checkpoint"),
        ("FAILED", None, {"from_scratch": True}, ""),
        ("FAILED", 40, {}, ""),
        ("FAILED", 40, {"unpause": True}, "ended_meanwhile"),
        ("COMPLETED", 40, {}, "already_complete"),
        ("COMPLETED", 40, {"until": 80}, ""),
        ("PAUSED", None, {"unpause": True}, ""),
    ],
)
def test_a_resume_that_would_surprise_is_refused_before_it_is_asked_for(
    state: str, newest: int | None, asked: dict[str, Any], code: str
) -> None:
    scene = Scene(JobRow("j", name="j", run_id="j", state=state), (), {}, (), (), 40, None, newest)

    try:
        outlook(scene, {"verb": "resume", **asked})
        found = ""
    except LoomError as error:
        found = error.code

    assert found == code
