"""Live messages over WebSocket, from a real weaver over real NATS to a client that is not ours."""

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from ...harness.home import allowed, until
from ...harness.metric_senders import Launched, Teller
from ...harness.server_plane import PATIENCE, Plane, Server
from ..listening import listening

pytestmark = pytest.mark.process

_COUNT = itertools.count()


@pytest.fixture
def teller(plane: Plane) -> Iterator[Teller]:
    with Teller(plane, f"job-{next(_COUNT)}") as one:
        yield one


def is_step(step: int, rank: int = 0) -> Any:
    return lambda said: said.get("step") == step and said["rank"] == rank


def told(messages: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in messages if each["type"] == kind]


def key(said: dict[str, Any]) -> tuple[str, ...]:
    return said["type"], said.get("from", ""), str(said["seq"]), str(said["step"])


def test_a_new_listener_hears_how_the_job_is_and_then_each_step_once(
    server: Server, teller: Teller
) -> None:
    with listening(server, f"/api/jobs/{teller.job}/stream") as client:
        first = client.message()
        for step in range(1, 6):
            teller.tell(0, (step, {"loss": 1.0 / step, "throughput": 540.0}))
        found = client.until(is_step(5))

    assert (first["type"], first["status"], first["job"]) == ("state", "RUNNING", teller.job)
    metrics = told(found, "metric")
    assert [(each["step"], each["loss"], each["throughput"]) for each in metrics] == [
        (step, 1.0 / step, 540.0) for step in range(1, 6)
    ]
    assert set(metrics[0]) == {
        *("type", "step", "loss", "throughput"),
        *("seq", "time", "rank", "role", "generation", "job", "cursor"),
    }


def test_a_transition_is_told_with_its_reason(server: Server, teller: Teller) -> None:
    with listening(server, f"/api/jobs/{teller.job}/stream?types=state") as client:
        client.message()
        teller.ends("FAILED", "exit_signal_9_rank_1")
        found = client.message()

    kept = {key: found[key] for key in ("type", "status", "reason", "job", "rank")}
    assert kept == {
        "type": "state",
        "status": "FAILED",
        "reason": "exit_signal_9_rank_1",
        "job": teller.job,
        "rank": None,
    }


def test_types_and_ranks_are_those_that_were_asked_for(server: Server, teller: Teller) -> None:
    with listening(server, f"/api/jobs/{teller.job}/stream?types=metric&ranks=1") as client:
        for step in range(1, 4):
            teller.tell(0, (step, {"loss": 0.0}))
            teller.happens(1, "custom", step)
            teller.tell(1, (step, {"loss": float(step)}))
        found = client.until(is_step(3, rank=1))

    assert [(each["type"], each["rank"], each["step"]) for each in found] == [
        ("metric", 1, step) for step in range(1, 4)
    ]


def test_the_start_has_everything_there_is(server: Server, teller: Teller) -> None:
    for step in range(1, 4):
        teller.tell(0, (step, {"loss": float(step)}), (step + 10, {"loss": float(step)}))
    teller.happens(1, "nan", 3, name="loss")
    until(teller.is_stored, PATIENCE)

    with listening(server, f"/api/jobs/{teller.job}/stream?after=start") as client:
        found = client.until(lambda said: said.get("kind") == "nan")
        found += [client.message() for _ in range(6 - len(told(found, "metric")))]

    assert sorted(each["step"] for each in told(found, "metric")) == [1, 2, 3, 11, 12, 13]
    assert told(found, "state")[0]["status"] == "RUNNING"


def test_every_cursor_goes_on_right_behind_its_message(server: Server, teller: Teller) -> None:
    for step in range(1, 10):
        teller.tell(0, (step, {"loss": 0.0}), (100 + step, {"loss": 0.0, "lr": 1.0}))
        teller.happens(1, "custom", step)
    until(teller.is_stored, PATIENCE)
    path = f"/api/jobs/{teller.job}/stream?types=metric,event&after="
    with listening(server, f"{path}start") as client:
        whole = client.until(lambda said: said.get("kind") == "custom" and said["step"] == 9)
        while len(told(whole, "metric")) < 18:
            whole.append(client.message())

    for number in range(len(whole) - 1):
        with listening(server, path + whole[number]["cursor"]) as client:
            rest = [client.message() for _ in whole[number + 1 :]]
        assert sorted(map(key, rest)) == sorted(map(key, whole[number + 1 :]))


def test_logs_are_told_line_by_line_and_go_on_from_a_cursor(
    plane: Plane, server: Server, teller: Teller
) -> None:
    launched = Launched(plane, teller.job)
    launched.print(0, "stdout", "before\n")
    path = f"/api/jobs/{teller.job}/stream?types=log"

    with listening(server, f"{path}&after=start") as client:
        first = client.message()
        launched.print(1, "stderr", "WARNING one\nhalf")
        second = client.message()
    launched.print(1, "stderr", " of it\n")
    launched.print(0, "stdout", "two\n")
    with listening(server, f"{path}&after={second['cursor']}") as client:
        others = [client.message(), client.message()]

    shown = [(one["rank"], one["stream"], one["level"], one["message"]) for one in (first, second)]
    assert shown == [
        (0, "stdout", "info", "before"),
        (1, "stderr", "warning", "WARNING one"),
    ]
    assert sorted((one["rank"], one["message"]) for one in others) == [
        (0, "two"),
        (1, "half of it"),
    ]


def test_one_socket_follows_several_jobs(plane: Plane, server: Server, teller: Teller) -> None:
    with Teller(plane, f"job-{next(_COUNT)}") as other:
        path = f"/api/stream?jobs={teller.job},{other.job}&types=metric"
        both = [(teller.job, 1), (other.job, 1)]
        with listening(
            server, f"{path}&after={teller.job}:start&after={other.job}:start"
        ) as client:
            teller.tell(0, (1, {"loss": 0.0}))
            other.tell(0, (1, {"loss": 0.0}))
            found = [client.message(), client.message()]
        cursors = [f"after={each['job']}:{each['cursor']}" for each in found]
        teller.tell(0, (2, {"loss": 0.0}))
        other.tell(0, (2, {"loss": 0.0}))
        with listening(server, "&".join([path, *cursors])) as client:
            rest = [client.message(), client.message()]

    assert sorted((each["job"], each["step"]) for each in found) == sorted(both)
    assert {(each["job"], each["step"]) for each in rest} == {(teller.job, 2), (other.job, 2)}


def test_a_client_that_does_not_read_is_let_go_and_told_why(server: Server, teller: Teller) -> None:
    path = f"/api/jobs/{teller.job}/stream?types=metric"
    wide = {f"metric-{number:03}": 0.123456789 for number in range(200)}
    with (
        listening(server, path, max_queue=1) as slow,  # which stops to read when one waits
        listening(server, path) as quick,
    ):
        for step in range(1, 4000):
            teller.tell(0, (step, wide))
            if step % 100 == 0:
                quick.until(is_step(step))
                if _has_been_dropped(server):
                    break
        with pytest.raises(ConnectionClosed) as closed:
            slow.until(lambda said: False)

    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason[:9]) == (1013, "too slow:")


def _has_been_dropped(server: Server) -> bool:
    with server.client() as caller:
        line = next(
            each
            for each in caller.get("/metrics").text.splitlines()
            if each.startswith("torchloom_stream_listeners ")
        )
    return float(line.split()[1]) < 2


def test_a_client_has_nothing_to_say_but_pings(server: Server, teller: Teller) -> None:
    with listening(server, f"/api/jobs/{teller.job}/stream") as client:
        client.socket.ping().wait(PATIENCE)
        client.socket.send(json.dumps({"type": "state"}))
        with pytest.raises(ConnectionClosed) as closed:
            client.until(lambda said: False)

    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1003


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/jobs/nobody/stream", 404, "not_found"),
        ("/api/jobs/{job}/stream?after=nonsense", 422, "bad_cursor"),
        ("/api/jobs/{job}/stream?types=loss", 422, "bad_value"),
        ("/api/jobs/{job}/stream?ranks=one", 422, "bad_value"),
        ("/api/stream?jobs=", 422, "bad_value"),
        ("/api/stream?jobs={job},nobody", 404, "not_found"),
    ],
)
def test_a_wrong_address_is_refused_before_a_socket_is_open(
    server: Server, teller: Teller, path: str, status: int, code: str
) -> None:
    with (
        pytest.raises(InvalidStatus) as refused,
        listening(server, path.format(job=teller.job)),
    ):
        pass

    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body)["code"] == code


def test_a_revoked_token_ends_its_sockets_within_five_seconds(
    server: Server, teller: Teller
) -> None:
    with server.client() as admin:
        admin.put("/api/users/vera", json={"role": "viewer"}).raise_for_status()
        made = admin.post("/api/tokens", json={"user": "vera", "label": "x"}).json()
        with listening(server, f"/api/jobs/{teller.job}/stream", token=made["token"]) as client:
            client.message()
            began = time.monotonic()
            admin.delete(f"/api/tokens/{made['id']}").raise_for_status()
            with pytest.raises(ConnectionClosed) as closed:
                client.until(lambda said: False)
            took = time.monotonic() - began

    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4401
    assert took < allowed(5.0)


def test_a_weaver_that_restarts_is_not_noticed_by_a_listener(
    plane: Plane, server: Server, teller: Teller
) -> None:
    with listening(server, f"/api/jobs/{teller.job}/stream?types=metric") as client:
        teller.tell(0, (1, {"loss": 0.0}))
        before = client.until(is_step(1))
        plane.weaver.end()
        teller.tell(0, (2, {"loss": 0.0}))
        plane.start_weaver()
        after = client.until(is_step(2))

    assert [each["step"] for each in [*before, *after]] == [1, 2]
