"""The dashboard's files over HTTP: whoever may load them, for how long, and nothing beside them."""

import asyncio
import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.types import ASGIApp

from torchloom.server.app import Front, build, guarded
from torchloom.server.bundle import HOW, NO_BUNDLE, Bundle, bundle_of
from torchloom.server.plane_access import PlaneAccess
from torchloom.server.security.guard import reach
from torchloom.server.weaver_link import WeaverLink
from torchloom.weaver.store import DatabasePlace
from torchloom.weaver.store.reader import open_reading

from .asgi import HOST, Answer, acall

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


class Site:
    """An app that serves a folder, and nobody behind it."""

    def __init__(self, folder: Path, bundle: Bundle) -> None:
        self._loop = asyncio.new_event_loop()
        self._app = self._loop.run_until_complete(self._built(folder, bundle))

    async def _built(self, folder: Path, bundle: Bundle) -> ASGIApp:
        self._access = PlaneAccess(
            WeaverLink(folder / "none"), open_reading(DatabasePlace(folder)), folder
        )
        front = Front(reach(8787), bundle=bundle)
        return guarded(build(self._access, front), front)

    def get(self, path: str, encoding: str = "", accept: str = "*/*") -> Answer:
        headers = (HOST, ("accept-encoding", encoding), ("accept", accept))
        return self._loop.run_until_complete(acall(self._app, "GET", path, headers))

    def close(self) -> None:
        self._loop.run_until_complete(self._access.close())
        self._loop.close()


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    folder = tmp_path / "dist"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html><title>torchLoom</title>")
    (folder / "assets" / "index-abc123.js").write_text("1")
    (folder / "favicon.svg").write_text("<svg/>")
    (tmp_path / "secret").write_text("secret")
    (folder / "assets" / "out").symlink_to(tmp_path / "secret")
    return folder


@pytest.fixture
def site(tmp_path: Path, dist: Path) -> Iterator[Site]:
    made = Site(tmp_path, Bundle(dist))
    yield made
    made.close()


@pytest.mark.parametrize("path", ["/", "/jobs", "/jobs/x", "/jobs/x/logs"])
def test_every_path_of_the_page_is_the_page(site: Site, path: str) -> None:
    answer = site.get(path)

    assert (answer.status, answer.body) == (200, b"<!doctype html><title>torchLoom</title>")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    rules = answer.headers["content-security-policy"].split("; ")
    assert rules[:3] == ["default-src 'none'", "script-src 'self'", "style-src 'self'"]
    assert "frame-ancestors 'none'" in rules
    assert not any("unsafe" in rule or "http" in rule for rule in rules)


def test_what_has_a_hash_in_its_name_is_kept_for_ever(site: Site) -> None:
    script, icon = site.get("/assets/index-abc123.js"), site.get("/favicon.svg")

    assert script.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert script.headers["content-type"].startswith("text/javascript")
    assert icon.headers["cache-control"] == "no-cache"
    assert {one.headers["x-content-type-options"] for one in (script, icon)} == {"nosniff"}


def test_a_script_is_packed_for_whoever_can_unpack_it(site: Site) -> None:
    plain = site.get("/assets/index-abc123.js", "br, gzip;q=0")
    packed = site.get("/assets/index-abc123.js", "br, gzip")

    assert ("content-encoding" in plain.headers, plain.body) == (False, b"1")
    assert (packed.headers["content-encoding"], gzip.decompress(packed.body)) == ("gzip", b"1")
    assert {one.headers["vary"] for one in (plain, packed)} == {"Accept-Encoding"}
    assert packed.headers["cache-control"] == plain.headers["cache-control"]


@pytest.mark.parametrize(
    "path",
    [
        *("/assets/none.js", "/assets/", "/assets/out", "/assets/../../secret"),
        *("/assets/..%2f..%2fsecret", "/assets//etc/passwd", "/assets/\0", "/robots.txt"),
        *("/index.html", "/elsewhere", "/secret"),
    ],
)
def test_nothing_else_is_there(site: Site, path: str) -> None:
    answer = site.get(path)

    assert (answer.status, answer.code) == (404, "not_found")


@pytest.mark.parametrize("path", ["/elsewhere", "/foo/bar", "/index.html", "/apiary"])
def test_a_browser_is_shown_the_page_at_an_address_that_there_is_not(site: Site, path: str) -> None:
    answer = site.get(path, accept=BROWSER)

    assert (answer.status, answer.body) == (404, b"<!doctype html><title>torchLoom</title>")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'self'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("path", "status"), [("/api/nope", 404), ("/api", 404), ("/api/login", 405), ("/api/me", 401)]
)
def test_the_api_answers_a_browser_as_it_answers_a_program(
    site: Site, path: str, status: int
) -> None:
    answer = site.get(path, accept=BROWSER)

    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")


def test_without_a_bundle_the_page_says_in_a_line_how_to_have_it(tmp_path: Path) -> None:
    site = Site(tmp_path, NO_BUNDLE)

    answer = site.get("/")
    site.close()

    assert (answer.status, answer.body.decode()) == (200, f"{HOW}\n")
    assert "make dashboard" in HOW


def test_a_bundle_is_named_by_a_variable_or_is_to_be_none(dist: Path) -> None:
    found = bundle_of({"LOOM_DASHBOARD": str(dist)})
    none = bundle_of({"LOOM_DASHBOARD": "none"})

    assert (found.is_there, none.is_there) == (True, False)
    assert found.index() == dist / "index.html"
