"""The page behind a one-time link in a real browser: what it shows, keeps, and lets others do."""

import http.server
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from torchloom.plane.certificates import certificate

from ...harness.server_plane import PATIENCE, Plane, Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = [pytest.mark.process, pytest.mark.needs("browser")]
ME = """fetch("/api/me", {headers: {"X-Loom-Session": localStorage.getItem("loom-session")}})
  .then((answer) => answer.json())"""
ATTEMPTS = """async (url) => {
  const tried = {};
  const words = {credentials: "include", mode: "no-cors", method: "POST", body: "{}"};
  for (const path of ["/api/jobs", "/api/links", "/api/logout"])
    tried[path] = await fetch(url + path, words).then((a) => a.type, (e) => "failed");
  tried.read = await fetch(url + "/api/me", {credentials: "include"})
    .then((a) => a.text(), (e) => "failed");
  tried.socket = await new Promise((done) => {
    const socket = new WebSocket(url.replace("http", "ws") + "/api/stream");
    socket.onopen = () => done("open");
    socket.onerror = () => done("failed");
  });
  return tried;
}"""


@pytest.fixture(scope="module")
def browser(admin: httpx.Client, secured: Server) -> Iterator["Browser"]:
    """Give a browser; its loop is this thread's, so all that begins one of its own is up before."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or "chromium"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def visitor(browser: "Browser") -> Iterator["BrowserContext"]:
    context = browser.new_context(ignore_https_errors=True)  # the authority is the plane's own
    yield context
    context.close()


@pytest.fixture(scope="module")
def secured(plane: Plane, server: Server) -> Server:
    made = certificate(plane.home / "plane", "127.0.0.1")
    words = ["--tls-cert", made.chain, "--tls-key", made.key, "--tls-ca", made.authority]
    return plane.start_server(*map(str, words))


def link(admin: httpx.Client, server: Server, user: str, role: str) -> str:
    """Return a way in for somebody, to one of the servers."""
    assert admin.put(f"/api/users/{user}", json={"role": role}).status_code == 200
    code = admin.post("/api/links", json={"user": user}).json()["code"]
    return f"{server.url}/login#{code}"


def opened(visitor: "BrowserContext", url: str) -> "tuple[Page, str]":
    """Open a page and return what it says in the end, or fail for what the browser complains of."""
    from playwright.sync_api import expect

    page = visitor.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if "Security" in said.text else 0)
    page.goto(url)
    expect(page.locator("p")).not_to_have_text("Signing you in.", timeout=PATIENCE * 1000)
    assert wrong == []
    return page, str(page.text_content("p"))


def name_of(server: Server) -> str:
    """Return what a server calls its cookie: no other port's has this name."""
    return f"loom-{server.url.rpartition(':')[2]}"


def cookies(visitor: "BrowserContext") -> list[tuple[Any, ...]]:
    names = ("name", "path", "httpOnly", "sameSite", "secure")
    return [tuple(one.get(name) for name in names) for one in visitor.cookies()]


def test_a_link_logs_in_once_and_leaves_no_code_behind(
    visitor: "BrowserContext", browser: "Browser", admin: httpx.Client, server: Server
) -> None:
    url = link(admin, server, "vera", "viewer")

    page, said = opened(visitor, url)
    me = page.evaluate(ME)
    bare = page.evaluate("fetch('/api/me').then((answer) => answer.json())")
    read = page.evaluate("document.cookie")
    page.goto(f"{server.url}/docs")
    page.get_by_text("/api/jobs/{id}/metrics").wait_for(timeout=PATIENCE * 1000)
    other = browser.new_context()
    _, again = opened(other, url)
    other.close()

    assert said == "Signed in as vera (viewer)."
    assert (me["user"], me["role"], me["kind"]) == ("vera", "viewer", "cookie")
    assert (bare["status"], bare["code"]) == (401, "sign_in_again")
    assert cookies(visitor) == [(name_of(server), "/", True, "Strict", False)]
    assert read == ""
    assert "/api/jobs" in str(page.text_content("body"))
    assert "used" in again
    page.go_back()
    assert page.url == f"{server.url}/login"
    assert url.partition("#")[2] not in server.process.log.read_text()


def test_under_tls_the_cookie_goes_over_tls_alone(
    visitor: "BrowserContext", admin: httpx.Client, secured: Server
) -> None:
    _, said = opened(visitor, link(admin, secured, "oskar", "operator"))

    assert said == "Signed in as oskar (operator)."
    assert cookies(visitor) == [(name_of(secured), "/", True, "Strict", True)]


@pytest.mark.parametrize(
    ("code", "why"),
    [("", "Sign in with a one-time link"), ("#made-up", "no such link")],
)
def test_without_a_link_that_counts_the_page_says_why(
    visitor: "BrowserContext", server: Server, code: str, why: str
) -> None:
    _, said = opened(visitor, f"{server.url}/login{code}")

    assert why in said
    assert cookies(visitor) == []


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])  # the latter is sent the cookie, too
def test_a_page_from_elsewhere_can_neither_read_nor_change_what_its_visitor_may(
    visitor: "BrowserContext", admin: httpx.Client, server: Server, tmp_path: Path, host: str
) -> None:
    opened(visitor, link(admin, server, "adam", "admin"))
    before = len(admin.get("/api/tokens").json()["items"])
    (tmp_path / "index.html").write_text("<!doctype html><title>elsewhere</title>")
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=site.serve_forever, daemon=True).start()

    page = visitor.new_page()
    page.goto(f"http://{host}:{site.server_port}/")
    tried = page.evaluate(ATTEMPTS, server.url)
    site.shutdown()
    site.server_close()

    assert (tried["read"], tried["socket"]) == ("failed", "failed")
    assert len(admin.get("/api/tokens").json()["items"]) == before
    assert admin.get("/api/jobs").json()["items"] == []
    home = visitor.new_page()
    home.goto(f"{server.url}/login")
    assert home.evaluate(ME)["user"] == "adam"
