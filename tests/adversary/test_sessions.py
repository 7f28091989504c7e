"""A cookie goes to every port of its host: whoever listens there gets it, and it opens nothing.

The thief is a plain HTTP server of this test on another port of 127.0.0.1, which writes down the
`Cookie` header that Chromium sends it.
"""

import contextlib
import hashlib
import http.server
import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from ..harness.dashboard_build import built
from ..harness.home import until
from ..harness.server_plane import PATIENCE, Plane, Server, running

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, WebSocket

pytestmark = [pytest.mark.process, pytest.mark.needs("browser"), pytest.mark.needs("dashboard")]
ENDED, REFUSED = 4401, 1008
LIVE = '[data-testid="live-dot"][data-state="live"]'
KEPT = 'localStorage.getItem("loom-session")'


class Thief:
    """A server of another port: it writes down what cookies it is sent, and sets one of its own."""

    def __init__(self) -> None:
        self.cookies: list[str] = []
        self.planted = ""
        thief = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                thief.cookies += self.headers.get_all("Cookie") or []
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                if thief.planted:
                    self.send_header("Set-Cookie", thief.planted)
                self.end_headers()
                self.wfile.write(b"<!doctype html><title>free GPUs</title>")

            def log_message(self, *words: Any) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def cookie(self, server: Server) -> str:
        """Return the cookie of a server that this one was sent."""
        pairs = [pair.strip().partition("=") for pair in ";".join(self.cookies).split(";")]
        [found] = {value for name, _, value in pairs if name == cookie_name(server)}
        return found

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    dist, why = built()
    assert dist is not None, why
    with running(tmp_path_factory.mktemp("plane")) as started:
        started.env["LOOM_DASHBOARD"] = str(dist)
        yield started


@pytest.fixture(scope="module")
def server(plane: Plane) -> Server:
    return plane.start_server()


@pytest.fixture(scope="module")
def admin(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def other(plane: Plane, server: Server) -> Server:
    """Give a second server on another port of the host."""
    return plane.start_server()


@pytest.fixture(scope="module")
def browser(admin: httpx.Client, other: Server) -> Iterator["Browser"]:
    """Give a browser; its loop is this thread's, so all that begins one of its own is up before."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or "chromium"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def visitor(browser: "Browser") -> Iterator["BrowserContext"]:
    context = browser.new_context()
    context.set_default_timeout(PATIENCE * 1000)
    yield context
    context.close()


@pytest.fixture
def thief() -> Iterator[Thief]:
    made = Thief()
    yield made
    made.close()


def cookie_name(server: Server) -> str:
    return f"loom-{server.url.rpartition(':')[2]}"


def link(admin: httpx.Client, server: Server, user: str, role: str = "admin") -> str:
    code = admin.post("/api/links", json={"user": user, "role": role}).json()["code"]
    return f"{server.url}/login#{code}"


def enter(visitor: "BrowserContext", admin: httpx.Client, server: Server, user: str) -> "Page":
    """Sign in by a link; return the page that it leads to, when it is live."""
    page = visitor.new_page()
    page.goto(link(admin, server, user))
    page.wait_for_url(f"{server.url}/")
    page.locator(LIVE).wait_for()
    return page


def is_in(page: "Page", user: str) -> bool:
    """Come back when a page is live; tell whether it is a user's."""
    page.locator(LIVE).wait_for()
    return user in (page.locator("header summary").last.text_content() or "")


def session(admin: httpx.Client, server: Server, user: str) -> tuple[str, str]:
    """Return both secrets of a new session, which no browser has."""
    code = link(admin, server, user).partition("#")[2]
    answer = httpx.post(f"{server.url}/api/login", json={"code": code}, timeout=PATIENCE)
    return answer.cookies[cookie_name(server)], str(answer.json()["session"])


def stored(plane: Plane) -> dict[str, tuple[Any, ...]]:
    """Return what the database has of tokens, past the plane."""
    [path] = plane.home.rglob("state.db")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT id, user, kind, revoked_at FROM tokens")
        return {row[0]: row[1:] for row in found}


@contextlib.contextmanager
def socket(server: Server, path: str, **headers: str) -> Iterator[ClientConnection]:
    url = server.url.replace("http", "ws", 1) + path
    origin = headers.pop("Origin", server.url)
    with connect(
        url,
        origin=origin,  # type: ignore[arg-type]
        additional_headers=headers,
        open_timeout=PATIENCE,
    ) as opened:
        yield opened


def closing(server: Server, path: str, cookie: str, *said: object) -> tuple[int, str]:
    """Replay a cookie on a WebSocket; return why it is closed, or 0 and what it was told."""
    with socket(server, path, Cookie=f"{cookie_name(server)}={cookie}") as opened:
        with contextlib.suppress(ConnectionClosed):
            for each in said:
                opened.send(each if isinstance(each, (str, bytes)) else json.dumps(each))
        try:
            return 0, str(opened.recv(PATIENCE))
        except ConnectionClosed as closed:
            frame = closed.rcvd
    assert frame is not None
    return frame.code, frame.reason


def replays(server: Server, cookie: str) -> Iterator[httpx.Response]:
    """Try a cookie in every way that a thief could send it over HTTP."""
    pair, port = f"{cookie_name(server)}={cookie}", server.url.rpartition(":")[2]
    ways: list[dict[str, str]] = [
        {"Cookie": pair},
        {"Cookie": pair, "Origin": server.url},
        {"Cookie": pair, "Origin": f"http://localhost:{port}", "Sec-Fetch-Site": "same-origin"},
        {"Cookie": pair, "Origin": server.url, "X-Loom-Session": cookie},
        {"Cookie": pair, "Origin": server.url, "X-Loom-Session": ""},
        {"Cookie": f"loom={cookie}", "Origin": server.url},
        {"Authorization": f"Bearer {cookie}"},
        {"Authorization": f"Bearer {cookie}", "Cookie": pair, "Origin": server.url},
    ]
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        for way in ways:
            yield client.get("/api/me", headers=way)
            yield client.get("/api/jobs", headers=way)
            yield client.get("/metrics", headers=way)
            yield client.get("/docs", headers={"Accept": "text/html", **way})
            yield client.post("/api/tokens", json={"user": "ada"}, headers=way)
            yield client.post("/api/links", json={"user": "ada"}, headers=way)
            yield client.post("/api/logout", headers=way)
        yield client.post("/api/login", json={"code": cookie, "kind": "token"}, headers=ways[1])


def test_a_server_of_another_port_gets_the_cookie_and_can_do_nothing_with_it(
    visitor: "BrowserContext", admin: httpx.Client, server: Server, plane: Plane, thief: Thief
) -> None:
    page = enter(visitor, admin, server, "ada")
    lure = visitor.new_page()
    lure.goto(thief.url)
    cookie = thief.cookie(server)  # SameSite=Strict does not help: a port is no site of its own
    ours = next(one for one in visitor.cookies() if one.get("name") == cookie_name(server))
    before = stored(plane)

    answers = list(replays(server, cookie))
    assert {answer.status_code for answer in answers} == {401}
    first = closing(server, "/api/stream", cookie, {"op": "sub", "id": "a", "topic": "jobs"})
    wrong = closing(server, "/api/stream", cookie, {"op": "session", "secret": cookie})
    with (
        pytest.raises(InvalidStatus) as as_bearer,
        socket(server, "/api/stream", Authorization=f"Bearer {cookie}"),
    ):
        pass

    assert cookie == ours.get("value")
    assert lure.evaluate(KEPT) is None
    said = "".join(answer.text for answer in answers)
    assert ("sign_in_again" in said, "cookie_refused" in said, "ada" in said) == (True, True, False)
    assert first == wrong
    assert (first[0], "sign in again" in first[1]) == (ENDED, True)
    assert as_bearer.value.response.status_code == 401
    assert stored(plane) == before
    assert is_in(page, "ada")
    page.reload()
    assert is_in(page, "ada")


def test_the_page_works_in_a_new_tab_and_its_socket_comes_back(
    visitor: "BrowserContext", admin: httpx.Client, server: Server
) -> None:
    page = enter(visitor, admin, server, "ada")
    opened: list[str] = []
    frames: list[Any] = []

    def seen(socket: "WebSocket") -> None:
        opened.append(socket.url)
        socket.on("framesent", lambda frame: frames.append(frame))

    tab = visitor.new_page()
    tab.on("websocket", seen)

    tab.goto(f"{server.url}/settings")
    tab.get_by_role("link", name="Jobs").click()
    assert is_in(tab, "ada")
    tab.evaluate("window.__loom.cut()")
    until(lambda: tab.wait_for_timeout(20) or len(opened) > 1, PATIENCE)
    assert is_in(tab, "ada")
    secret = page.evaluate(KEPT)
    tab.get_by_role("link", name="API").click()
    tab.get_by_text("/api/jobs/{id}/metrics").wait_for()

    assert [secret in url for url in opened] == [False] * len(opened)
    assert [json.loads(each)["op"] for each in frames].count("session") == len(opened)
    assert secret not in tab.url + page.url + server.process.log.read_text()
    assert is_in(page, "ada")


def test_a_cookie_that_another_port_plants_locks_nobody_out(
    visitor: "BrowserContext", admin: httpx.Client, server: Server, thief: Thief
) -> None:
    page = enter(visitor, admin, server, "ada")
    foreign, _ = session(admin, server, "mallory")

    for planted in ("junk", foreign):
        thief.planted = f"{cookie_name(server)}={planted}; Path=/api"
        visitor.new_page().goto(thief.url)
        page.reload()
        assert is_in(page, "ada")
    assert len([one for one in visitor.cookies() if one.get("name") == cookie_name(server)]) == 2


def test_two_planes_of_one_host_are_used_side_by_side(
    visitor: "BrowserContext", admin: httpx.Client, server: Server, other: Server
) -> None:
    here, there = enter(visitor, admin, server, "ada"), enter(visitor, admin, other, "bert")

    for page, user in ((here, "ada"), (there, "bert")):
        page.reload()
        assert is_in(page, user)
    names = {one.get("name") for one in visitor.cookies()}
    leave(there)

    assert names == {cookie_name(server), cookie_name(other)}
    here.reload()
    assert is_in(here, "ada")


def leave(page: "Page") -> None:
    page.locator("header summary").last.click()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_test_id("login-help").wait_for()


def test_signing_out_ends_both_halves_in_every_tab(
    visitor: "BrowserContext", admin: httpx.Client, server: Server, plane: Plane, thief: Thief
) -> None:
    page, tab = enter(visitor, admin, server, "ada"), visitor.new_page()
    tab.goto(server.url)
    assert is_in(tab, "ada")
    tab.goto(thief.url)
    cookie, secret = thief.cookie(server), page.evaluate(KEPT)
    tab.goto(server.url)
    assert is_in(tab, "ada")
    both = {"Cookie": f"{cookie_name(server)}={cookie}", "X-Loom-Session": secret}
    good = httpx.get(f"{server.url}/api/me", headers=both, timeout=PATIENCE)

    leave(page)
    tab.get_by_test_id("login-help").wait_for()

    found = httpx.get(f"{server.url}/api/me", headers=both, timeout=PATIENCE)
    assert (good.status_code, found.status_code) == (200, 401)
    assert page.evaluate(KEPT) is None
    assert cookie_name(server) not in {one.get("name") for one in visitor.cookies()}
    assert stored(plane)[good.json()["token"]][2] is not None


def test_a_session_from_before_is_told_to_sign_in_again(
    visitor: "BrowserContext", admin: httpx.Client, server: Server, plane: Plane
) -> None:
    enter(visitor, admin, server, "ada").close()
    secret = "loom_a_cookie_of_one_secret"
    row = ("t-old", "ada", "browser", hashlib.sha256(secret.encode()).hexdigest(), "cookie")
    [path] = plane.home.rglob("state.db")
    with contextlib.closing(sqlite3.connect(path, timeout=PATIENCE)) as connection, connection:
        columns = "id, user, label, hash, kind, created_at, key, proof"
        words = f"INSERT INTO tokens ({columns}) VALUES (?, ?, ?, ?, ?, ?, '', '')"
        connection.execute(words, [*row, time.time()])
    visitor.clear_cookies()
    place = {"domain": "127.0.0.1", "path": "/", "httpOnly": True}
    visitor.add_cookies([{"name": cookie_name(server), "value": secret, **place}])  # type: ignore[list-item, typeddict-item]

    page = visitor.new_page()
    page.goto(server.url)
    page.get_by_role("heading", name="Sign in again").wait_for()
    page.goto(f"{server.url}/docs")
    page.get_by_text("sign in again").wait_for()
    page.goto(link(admin, server, "ada"))
    page.wait_for_url(f"{server.url}/")

    assert is_in(page, "ada")


def test_a_socket_is_closed_when_it_says_nothing_and_refused_in_words_when_it_is_known(
    admin: httpx.Client, server: Server
) -> None:
    cookie, secret = session(admin, server, "sven")
    opening = {"op": "session", "secret": secret}

    with socket(server, "/api/stream", Cookie=f"{cookie_name(server)}={cookie}") as silent:
        missing = closing(server, "/api/jobs/none/stream", cookie, opening)
        sent = {"op": "sub", "id": "a", "topic": "jobs"}
        garbage = closing(server, "/api/stream", cookie, b"\xff\x00", sent)
        early = closing(server, "/api/jobs/none/stream", cookie, {"op": "session", "secret": "x"})
        with pytest.raises(ConnectionClosed) as closed:
            silent.recv(PATIENCE)

    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == ENDED
    assert (missing[0], "none" in missing[1]) == (REFUSED, True)
    assert (garbage[0], early[0]) == (ENDED, ENDED)
    assert "none" not in early[1]  # whether there is such a job is not told


def test_the_log_has_who_opened_a_socket_and_no_secret(admin: httpx.Client, server: Server) -> None:
    cookie, secret = session(admin, server, "lars")
    closing(server, "/api/stream", cookie, {"op": "session", "secret": "wrong"})
    with socket(server, "/api/stream", Cookie=f"{cookie_name(server)}={cookie}") as opened:
        opened.send(json.dumps({"op": "session", "secret": secret}))
        hello = json.loads(opened.recv(PATIENCE))
        lines = [json.loads(each) for each in server.process.log.read_text().splitlines()]

    sockets = [one for one in lines if one.get("method") == "WS"]
    assert (hello["kind"], hello["user"]) == ("hello", "lars")
    assert [(one["status"], one["user"]) for one in sockets[-2:]] == [(401, None), (101, "lars")]
    assert sockets[-1]["path"] == "/api/stream"
    text = Path(server.process.log).read_text()
    assert (cookie in text, secret in text) == (False, False)
