"""Nothing behind the guard hears a request that may not be made; each refusal says why."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from torchloom.server.security.auth import CallerIdentity, Identities
from torchloom.server.security.guard import RequestGuard, reach
from torchloom.server.security.policy import ADMIN, OPEN, OPERATOR, VIEWER, WEBSOCKET, AccessPolicy
from torchloom.weaver.store import StateLost
from torchloom.weaver.users import hash_of

from ..asgi import HOST, Answer, Headers, acall, call

ORIGIN = ("Origin", "http://localhost:8787")
POLICY = AccessPolicy(
    {
        ("GET", "/open"): OPEN,
        ("GET", "/things/{id}"): VIEWER,
        ("POST", "/things/{id}"): OPERATOR,
        ("GET", "/things/special"): ADMIN,
        (WEBSOCKET, "/stream/{id}"): VIEWER,
        ("GET", "/both"): VIEWER,
        (WEBSOCKET, "/both"): OPERATOR,
    }
)
ROLES = {"vera": VIEWER, "olga": OPERATOR, "ada": ADMIN}
KNOWN = {
    hash_of(f"loom_{name}"): CallerIdentity(name, role, f"t-{name}", "token")
    for name, role in ROLES.items()
}
SESSIONS = {
    hash_of(f"loom_{name}_cookie"): CallerIdentity(
        name, role, f"s-{name}", "cookie", hash_of(f"{name}_proof")
    )
    for name, role in ROLES.items()
}
SESSIONS[hash_of("loom_old_cookie")] = CallerIdentity("vera", VIEWER, "s-old", "cookie")
ENDED, BAD_POLICY = 4401, 1008


class Behind:
    """The app behind the guard: it remembers what it heard, and says yes to all."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        who = scope.get("state", {}).get("identity")
        self.heard.append((scope.get("path", scope["type"]), who))
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def behind() -> Behind:
    return Behind()


@pytest.fixture
def ask(behind: Behind) -> Callable[..., Answer]:
    known = KNOWN | SESSIONS
    guard = RequestGuard(behind, Identities(lambda _, value: known.get(value)), reach(8787), POLICY)

    def ask(
        method: str,
        path: str,
        *headers: tuple[str, str],
        host: Headers = (HOST,),
        said: tuple[str, ...] = (),
    ) -> Answer:
        return call(guard, method, path, [*host, *headers], said)

    return ask


def bearer(name: str) -> tuple[str, str]:
    return "Authorization", f"Bearer loom_{name}"


def cookie(name: str) -> tuple[str, str]:
    return "Cookie", f"theme=dark; loom-8787=loom_{name}_cookie; x=y"


def proof(name: str) -> tuple[str, str]:
    return "X-Loom-Session", f"{name}_proof"


def opening(name: str) -> str:
    return json.dumps({"op": "session", "secret": f"{name}_proof"})


def test_a_token_lets_its_user_in_and_is_not_passed_on(ask: Any, behind: Behind) -> None:
    assert ask("GET", "/things/1", bearer("vera")).status == 200
    assert ask("HEAD", "/things/1", ("authorization", "bearer  loom_vera ")).status == 200
    assert ask("WS", "/stream/1", bearer("vera")).status == 101

    vera = CallerIdentity("vera", "viewer", "t-vera", "token")
    assert behind.heard == [("/things/1", vera)] * 2 + [("/stream/1", vera)]


def test_a_session_lets_its_user_in_by_both_of_its_secrets(ask: Any, behind: Behind) -> None:
    assert ask("GET", "/things/1", cookie("vera"), proof("vera")).status == 200
    assert ask("WS", "/stream/1", cookie("vera"), ORIGIN, said=(opening("vera"),)).status == 101

    vera = SESSIONS[hash_of("loom_vera_cookie")]
    assert behind.heard == [("/things/1", vera), ("/stream/1", vera)]
    assert vera.proof not in repr(vera)


@pytest.mark.parametrize(
    "headers",
    [
        (cookie("vera"),),
        (proof("vera"),),
        (cookie("vera"), proof("olga")),
        (cookie("vera"), proof("vera"), proof("vera")),
        (cookie("vera"), ("X-Loom-Session", "")),
        (cookie("vera"), ("X-Loom-Session", "x" * 100_000)),
        (cookie("vera"), ("X-Loom-Session", "loom_vera_cookie")),
        (cookie("vera"), ("X-Loom-Session", hash_of("vera_proof"))),
        (cookie("nobody"), proof("vera")),
        (cookie("old"), proof("vera")),
        (cookie("old"), ("X-Loom-Session", "")),
        (("Cookie", "loom-8787=loom_vera"), proof("vera")),  # a token is no cookie
    ],
)
def test_half_a_session_opens_nothing_and_is_told_to_sign_in_again(
    ask: Any, behind: Behind, headers: Headers
) -> None:
    for method in ("GET", "POST"):
        answer = ask(method, "/things/1", *headers, ORIGIN)
        assert (answer.status, answer.code) == (401, "sign_in_again")
        assert "sign in again" in answer.problem["detail"]
        assert answer.headers["www-authenticate"].startswith("Bearer ")
        assert "vera" not in answer.body.decode()
    assert behind.heard == []


@pytest.mark.parametrize("name", ["vera", "old"])
@pytest.mark.parametrize(("method", "path"), [("GET", "/things/1"), ("WS", "/stream/1")])
def test_a_cookie_is_no_token(ask: Any, behind: Behind, method: str, path: str, name: str) -> None:
    shown = bearer(f"{name}_cookie")
    for others in ((), (ORIGIN,), (cookie("vera"), proof("vera"), ORIGIN)):
        answer = ask(method, path, shown, *others)
        assert (answer.status, answer.code) == (401, "cookie_refused")
        assert "not a token" in answer.problem["detail"]
    assert behind.heard == []


@pytest.mark.parametrize(
    "said",
    [
        (),
        ("",),
        ("vera_proof",),
        ("null",),
        ("[" * 2000,),
        ('{"op": "session"}',),
        ('{"op": "session", "secret": null}',),
        ('{"op": "session", "secret": ""}',),
        ('{"op": "sub", "id": "a", "topic": "jobs", "secret": "vera_proof"}',),
        (opening("olga"),),
        (opening("olga"), opening("vera")),  # there is one try
    ],
)
def test_a_socket_that_does_not_begin_with_its_second_secret_is_closed(
    ask: Any, behind: Behind, said: tuple[str, ...]
) -> None:
    answer = ask("WS", "/stream/1", cookie("vera"), ORIGIN, said=said)

    assert (answer.status, b"sign in again" in answer.body) == (ENDED, True)
    assert behind.heard == []


def test_a_socket_by_an_unknown_cookie_is_not_opened(ask: Any, behind: Behind) -> None:
    answer = ask("WS", "/stream/1", cookie("nobody"), ORIGIN, said=(opening("vera"),))

    assert (answer.status, answer.code) == (401, "sign_in_again")
    assert behind.heard == []


def test_a_socket_for_a_larger_role_is_closed_in_words_behind_the_proof(
    ask: Any, behind: Behind
) -> None:
    early = ask("WS", "/both", cookie("vera"), ORIGIN)
    late = ask("WS", "/both", cookie("vera"), ORIGIN, said=(opening("vera"),))

    assert early.status == ENDED
    assert (late.status, late.body) == (BAD_POLICY, b"vera is viewer, and this takes operator")
    assert behind.heard == []


def test_a_cookie_that_another_port_has_planted_stands_in_nobodys_way(ask: Any) -> None:
    for planted in ("loom_nobody_cookie", "loom_olga_cookie"):
        both = ("Cookie", f"loom-8787={planted}; loom-8787=loom_vera_cookie")
        assert ask("GET", "/things/1", both, proof("vera")).status == 200
        assert ask("WS", "/stream/1", both, ORIGIN, said=(opening("vera"),)).status == 101
        assert ask("GET", "/things/1", both, proof("nobody")).status == 401


@pytest.mark.parametrize("name", ["loom", "loom-8788", "loom-80"])
def test_the_cookie_of_another_port_is_not_looked_at(ask: Any, name: str) -> None:
    answer = ask("GET", "/things/1", ("Cookie", f"{name}=loom_vera_cookie"), proof("vera"))

    assert answer.status == 401


def test_a_page_that_a_browser_is_led_to_asks_again_by_itself(ask: Any, behind: Behind) -> None:
    page = ask("GET", "/things/1", cookie("vera"), ("Accept", "text/html,*/*"))
    answer = ask("GET", "/things/1", bearer("nobody"), ("Accept", "text/html,*/*"))

    assert (page.status, page.headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert "X-Loom-Session" in page.body.decode()
    assert "vera" not in page.body.decode()
    assert answer.code == "unauthenticated"
    assert behind.heard == []


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (bearer("nobody"),),
        (("Authorization", "loom_vera"),),
        (("Authorization", "Basic loom_vera"),),
        (("Authorization", "Bearer "),),
        (("Authorization", f"Bearer {'x' * 100_000}"),),
        (("Authorization", "Bearer loom_vér"),),
        (bearer("vera"), bearer("vera")),
        (bearer("nobody"), cookie("vera")),
        (("Cookie", "loom"),),
        (("Cookie", "loom=loom_vera_cookie"),),
        (("Cookie", "xloom-8787=loom_vera_cookie"),),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/things/1"), ("WS", "/stream/1")])
def test_without_a_token_that_is_known_nobody_gets_in(
    ask: Any, behind: Behind, method: str, path: str, headers: Headers
) -> None:
    answer = ask(method, path, *headers)

    assert (answer.status, answer.code) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"].startswith("Bearer ")
    assert "vera" not in answer.body.decode()
    assert behind.heard == []


@pytest.mark.parametrize(
    ("method", "path", "name", "allowed"),
    [
        ("GET", "/things/1", "vera", True),
        ("POST", "/things/1", "vera", False),
        ("POST", "/things/1", "olga", True),
        ("GET", "/things/special", "olga", False),
        ("GET", "/things/special", "ada", True),
        ("GET", "/both", "vera", True),
        ("WS", "/both", "vera", False),
        ("WS", "/both", "olga", True),
    ],
)
def test_a_role_may_what_its_rows_say_and_of_two_rows_the_stricter_counts(
    ask: Any, behind: Behind, method: str, path: str, name: str, allowed: bool
) -> None:
    answer = ask(method, path, bearer(name))

    assert (answer.status in (101, 200)) == allowed == bool(behind.heard)
    if not allowed:
        assert (answer.status, answer.code) == (403, "forbidden")
        assert answer.problem["detail"].startswith(f"{name} is ")


@pytest.mark.parametrize(
    "host",
    [
        (),
        (("Host", ""),),
        (("Host", "evil.example"),),
        (("Host", "evil.example:8787"),),
        (("Host", "localhost"),),
        (("Host", "localhost:80"),),
        (("Host", "localhost.evil.example:8787"),),
        (("Host", "x@localhost:8787"),),
        (("Host", "0.0.0.0:8787"),),
        (("Host", "2130706433:8787"),),
        (("Host", "localhost:8787"), ("Host", "evil.example")),
    ],
)
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/open"), ("GET", "/nothing"), ("WS", "/stream/1")]
)
def test_a_foreign_host_is_refused_before_anything_else(
    ask: Any, behind: Behind, host: Headers, method: str, path: str
) -> None:
    answer = ask(method, path, bearer("ada"), host=host)

    assert (answer.status, answer.code) == (421, "foreign_host")
    assert behind.heard == []


@pytest.mark.parametrize(
    "name", ["localhost:8787", "LOCALHOST:8787", "127.0.0.1:8787", "[::1]:8787"]
)
def test_our_own_names_are_taken(ask: Any, name: str) -> None:
    assert ask("GET", "/open", host=[("Host", name)]).status == 200


@pytest.mark.parametrize(
    "origin",
    [
        *("http://evil.example", "null", "", "https://localhost:8787", "http://localhost:8788"),
        *("http://localhost:8787.evil.example", "http://localhost", "http://localhost:8787/"),
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/open"), ("GET", "/things/1"), ("POST", "/things/1"), ("WS", "/stream/1")],
)
def test_a_page_of_another_origin_is_refused_whatever_it_shows(
    ask: Any, behind: Behind, method: str, path: str, origin: str
) -> None:
    for shown in (bearer("ada"), cookie("ada")):
        answer = ask(method, path, shown, ("Origin", origin))
        assert (answer.status, answer.code) == (403, "foreign_origin")

    two = ask(method, path, bearer("ada"), ORIGIN, ("Origin", "http://evil.example"))
    assert two.code == "foreign_origin"
    assert behind.heard == []


def test_what_a_cookie_changes_must_come_from_a_page_of_ours(ask: Any, behind: Behind) -> None:
    for method, path in (("POST", "/things/1"), ("WS", "/stream/1")):
        bare = ask(method, path, cookie("olga"), proof("olga"), said=(opening("olga"),))
        assert (bare.status, bare.code) == (403, "foreign_origin")
    assert behind.heard == []

    assert ask("POST", "/things/1", cookie("olga"), proof("olga"), ORIGIN).status == 200
    assert ask("WS", "/stream/1", cookie("olga"), ORIGIN, said=(opening("olga"),)).status == 101
    assert ask("POST", "/things/1", bearer("olga")).status == 200  # no browser sends it by itself


def test_what_has_no_row_is_not_passed_on(ask: Any, behind: Behind) -> None:
    for method, path in (("GET", "/nothing"), ("WS", "/nothing"), ("GET", "/things/1/more")):
        assert (ask(method, path, bearer("ada")).code) == "not_found"
    for method, path in (("DELETE", "/things/1"), ("WS", "/things/1"), ("TRACE", "/open")):
        wrong = ask(method, path, bearer("ada"))
        assert (wrong.status, wrong.code) == (405, "method_not_allowed")
    assert ask("DELETE", "/things/1", bearer("ada")).headers["allow"] == "GET, POST"
    assert ask("GET", "/stream/1", bearer("ada")).code == "not_found"
    assert behind.heard == []


def test_a_row_of_an_open_path_opens_nothing_else(ask: Any, behind: Behind) -> None:
    assert ask("GET", "/open").status == 200
    assert ask("GET", "/open/").code == "not_found"
    assert ask("GET", "//open").code == "not_found"
    assert ask("GET", "/open/../things/1").code == "not_found"
    assert ask("GET", "/OPEN").code == "not_found"
    assert behind.heard == [("/open", None)]


def test_without_a_database_nobody_is_let_in_and_told_to_come_back(behind: Behind) -> None:
    def lost(column: str, value: str) -> CallerIdentity | None:
        raise StateLost("the state database failed")

    guard = RequestGuard(behind, Identities(lost), reach(8787), POLICY)

    answer = call(guard, "GET", "/things/1", [HOST, bearer("ada")])

    assert (answer.status, answer.code) == (503, "state_lost")
    assert answer.headers["retry-after"] == "1"
    assert behind.heard == []


def test_a_websocket_without_a_way_to_answer_is_closed(behind: Behind) -> None:
    guard = RequestGuard(behind, Identities(lambda _, value: None), reach(8787), POLICY)

    answer = asyncio.run(acall(guard, "WS", "/stream/1", [HOST], extensions={}))

    assert answer.status == 1008
    assert behind.heard == []
