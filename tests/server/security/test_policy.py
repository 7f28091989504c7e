"""Every route and every row of the policy, walked: no token, too small a role, foreign callers."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import APIRouter, FastAPI, WebSocket
from fastapi.staticfiles import StaticFiles
from starlette.types import ASGIApp

from torchloom.server.app import Front, build, guarded
from torchloom.server.plane_access import PlaneAccess
from torchloom.server.security.auth import identities_of
from torchloom.server.security.guard import reach
from torchloom.server.security.policy import OPEN, POLICY, PolicyGap, Row, check, routes_of
from torchloom.server.weaver_link import WeaverLink
from torchloom.weaver.events import Journal
from torchloom.weaver.store import DatabasePlace, open_store
from torchloom.weaver.store.reader import open_reading
from torchloom.weaver.users import ROLES, UserRegistry

from ..asgi import HOST, Answer, acall

TRIED = (*((row, role) for row, role in POLICY.items()),)
GUARDED = [row for row, role in TRIED if role != OPEN]
OPENED = [row for row, role in TRIED if role == OPEN]
MORE_THAN_VIEWERS = [(row, role) for row, role in TRIED if role in ROLES[1:]]


class Walk:
    """The whole app before a plane that nobody is in, and a token for each role."""

    def __init__(self, folder: Path) -> None:
        store = open_store(DatabasePlace(folder))
        people = UserRegistry(store.state, Journal(store.state))
        self.tokens: dict[str, str] = {}
        for role in ROLES:
            people.put(role, role, None, "test")
            _, self.tokens[role] = people.add_token(role, "", "test")
        _, code = people.add_link("admin", "test")
        _, self.cookie, self.proof = people.use_link(code, "cookie", "browser")
        store.close()
        self._loop = asyncio.new_event_loop()
        self.app, self.front = self._loop.run_until_complete(self._build(folder))

    async def _build(self, folder: Path) -> tuple[FastAPI, ASGIApp]:
        reading = open_reading(DatabasePlace(folder))
        front = Front(reach(8787))
        app = build(PlaneAccess(WeaverLink(folder / "nobody.sock"), reading, folder), front)
        assert app.state.identities.__class__ is identities_of(reading.state).__class__
        return app, guarded(app, front)

    def ask(self, row: Row, *headers: tuple[str, str], host: tuple[str, str] = HOST) -> Answer:
        method, template = row
        path = re.sub(r"\{[^}]*\}", "x", template)
        return self._loop.run_until_complete(acall(self.front, method, path, [host, *headers]))

    def close(self) -> None:
        self._loop.run_until_complete(self.app.state.access.close())
        self._loop.close()


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    made = Walk(tmp_path_factory.mktemp("policy"))
    yield made
    made.close()


def shown(row: Row) -> str:
    return " ".join(row)


def bearer(token: str) -> tuple[str, str]:
    return "Authorization", f"Bearer {token}"


def test_every_route_has_a_row_and_every_row_a_route(walk: Walk) -> None:
    check(walk.app)

    assert len(set(routes_of(walk.app))) == len(POLICY)


@pytest.mark.parametrize("row", GUARDED, ids=shown)
def test_without_a_token_no_route_answers(walk: Walk, row: Row) -> None:
    for headers in ((), (bearer("loom_wrong"),), (("Cookie", "loom=wrong"),)):
        answer = walk.ask(row, *headers)
        assert (answer.status, answer.code) == (401, "unauthenticated")


@pytest.mark.parametrize("row", GUARDED, ids=shown)
def test_half_a_session_opens_no_route(walk: Walk, row: Row) -> None:
    cookie, origin = ("Cookie", f"loom-8787={walk.cookie}"), ("Origin", "http://localhost:8787")

    replayed = walk.ask(row, cookie, origin)
    as_token = walk.ask(row, bearer(walk.cookie), origin)
    other_half = walk.ask(row, ("X-Loom-Session", walk.proof), origin)

    assert replayed.status == (4401 if row[0] == "WS" else 401)
    assert (as_token.status, as_token.code) == (401, "cookie_refused")
    assert (other_half.status, other_half.code) == (401, "sign_in_again")


@pytest.mark.parametrize(("row", "role"), MORE_THAN_VIEWERS, ids=str)
def test_a_role_that_is_too_small_is_refused(walk: Walk, row: Row, role: str) -> None:
    for smaller in ROLES[: ROLES.index(role)]:
        answer = walk.ask(row, bearer(walk.tokens[smaller]))
        assert (answer.status, answer.code) == (403, "forbidden")


@pytest.mark.parametrize("row", [*GUARDED, *OPENED], ids=shown)
def test_a_foreign_host_or_origin_is_refused_on_every_route(walk: Walk, row: Row) -> None:
    token = bearer(walk.tokens["admin"])

    assert walk.ask(row, token, host=("Host", "evil.example:8787")).status == 421
    assert walk.ask(row, token, ("Origin", "http://evil.example")).code == "foreign_origin"


@pytest.mark.parametrize(
    "row", [row for row in GUARDED if row[0] not in ("GET", "HEAD")], ids=shown
)
def test_a_cookie_changes_nothing_without_an_origin_of_ours(walk: Walk, row: Row) -> None:
    answer = walk.ask(row, ("Cookie", f"loom-8787={walk.cookie}"), ("X-Loom-Session", walk.proof))

    assert (answer.status, answer.code) == (403, "foreign_origin")


def test_what_is_open_shows_and_changes_no_job() -> None:
    assert {shown(row) for row in OPENED} == {
        *("GET /healthz", "GET /readyz", "GET /login", "POST /api/login", "GET /api/authority"),
        *("GET /", "GET /jobs", "GET /jobs/{path:path}", "GET /assets/{path:path}"),
        *("GET /experiments", "GET /experiments/{path:path}", "GET /submit"),
        *("GET /cluster", "GET /settings", "GET /manual", "GET /manual/{path:path}"),
        *("GET /favicon.ico", "GET /favicon.svg", "GET /robots.txt"),
    }


def test_a_route_of_any_kind_without_a_row_is_named(tmp_path: Path) -> None:
    app = FastAPI(openapi_url=None)
    router = APIRouter(prefix="/inner")

    @router.get("/read")
    async def read() -> None: ...

    @router.websocket("/stream")
    async def stream(socket: WebSocket) -> None: ...

    app.include_router(router)
    app.mount("/files", StaticFiles(directory=tmp_path))

    @app.post("/write/{name}")
    async def write(name: str) -> None: ...

    with pytest.raises(PolicyGap) as gap:
        check(app, {("POST", "/write/{id}"): "operator", ("GET", "/gone"): "viewer"})

    assert gap.value.unruled == (
        ("GET", "/files/{path:path}"),
        ("GET", "/inner/read"),
        ("WS", "/inner/stream"),
    )
    assert gap.value.unused == (("GET", "/gone"),)
    assert str(gap.value) == (
        "GET /files/{path:path} has no row; GET /inner/read has no row; "
        "WS /inner/stream has no row; GET /gone has no route; "
        "correct POLICY in server/security/policy.py"
    )
