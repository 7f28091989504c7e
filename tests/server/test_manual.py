"""The manual over HTTP: open to all, sealed against what is not ours, and never old."""

import asyncio
import base64
import gzip
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.server.app import Front, build, guarded
from torchloom.server.bundle import HOW_MANUAL, NO_BUNDLE, Bundle, manual_of
from torchloom.server.plane_access import PlaneAccess
from torchloom.server.security.guard import reach
from torchloom.server.weaver_link import WeaverLink
from torchloom.weaver.store import DatabasePlace
from torchloom.weaver.store.reader import open_reading

from .asgi import HOST, Answer, acall

SCRIPT = "var a = 1"
PAGE = f"<!doctype html><script>{SCRIPT}</script><script src=a.js></script>"


class ManualSite:
    """An app that serves a manual, with no weaver behind it."""

    def __init__(self, folder: Path, manual: Bundle) -> None:
        self._loop = asyncio.new_event_loop()
        self._folder, self._manual = folder, manual
        self._access = self._loop.run_until_complete(self._reading())
        front = Front(reach(8787), manual=manual)
        self._app = guarded(build(self._access, front), front)

    async def _reading(self) -> PlaneAccess:
        return PlaneAccess(
            WeaverLink(self._folder / "none"),
            open_reading(DatabasePlace(self._folder)),
            self._folder,
        )

    def get(self, path: str, encoding: str = "") -> Answer:
        headers = (HOST, ("accept-encoding", encoding), ("accept", "text/html"))
        return self._loop.run_until_complete(acall(self._app, "GET", path, headers))

    def close(self) -> None:
        self._loop.run_until_complete(self._access.close())
        self._loop.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    (folder / "guides").mkdir(parents=True)
    (folder / "index.html").write_text(PAGE)
    (folder / "guides/a.html").write_text("<p>a guide")
    (folder / "search.json").write_text("{}")
    (tmp_path / "secret").write_text("secret")
    (folder / "out").symlink_to(tmp_path / "secret")
    return folder


@pytest.fixture
def site(tmp_path: Path, folder: Path) -> Iterator[ManualSite]:
    made = ManualSite(tmp_path, Bundle(folder))
    yield made
    made.close()


def test_pages_and_files_are_served_to_all_who_ask(site: ManualSite) -> None:
    first, page, data = map(site.get, ("/manual/", "/manual/guides/a.html", "/manual/search.json"))

    assert (first.status, first.body.decode()) == (200, PAGE)
    assert (page.status, page.body) == (200, b"<p>a guide")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert (data.status, data.headers["content-type"]) == (200, "application/json")


def test_the_folder_has_a_slash_for_links_are_relative_to_it(site: ManualSite) -> None:
    answer = site.get("/manual")

    assert (answer.status, answer.headers["location"]) == (308, "/manual/")


def test_a_page_may_load_only_its_own_files_and_run_only_its_own_scripts(site: ManualSite) -> None:
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()

    headers = site.get("/manual/").headers

    rules = headers["content-security-policy"].split("; ")
    assert rules[:2] == ["default-src 'none'", f"script-src 'self' 'sha256-{digest}'"]
    assert {"frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} <= set(rules)
    assert not any("http" in rule for rule in rules)
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    plain = site.get("/manual/guides/a.html").headers["content-security-policy"].split("; ")
    assert plain[1] == "script-src 'self'"


def test_what_is_built_again_is_served_again(site: ManualSite, folder: Path) -> None:
    before = site.get("/manual/guides/a.html", "gzip")
    (folder / "guides/a.html").write_text("<p>another")

    after = site.get("/manual/guides/a.html", "gzip")

    assert before.headers["cache-control"] == "no-cache"
    assert (gzip.decompress(before.body), gzip.decompress(after.body)) == (
        b"<p>a guide",
        b"<p>another",
    )


@pytest.mark.parametrize(
    "path",
    [
        *("/manual/absent.html", "/manual/guides/", "/manual/out", "/manual/../secret"),
        *("/manual/..%2fsecret", "/manual//etc/passwd", "/manual/\0"),
    ],
)
def test_nothing_beside_the_manual_is_there(site: ManualSite, path: str) -> None:
    answer = site.get(path)

    assert answer.status == 404
    assert b"secret" not in answer.body


def test_without_a_manual_a_line_says_how_to_have_it(tmp_path: Path) -> None:
    site = ManualSite(tmp_path, NO_BUNDLE)

    answer = site.get("/manual/")
    site.close()

    assert (answer.status, answer.body.decode()) == (404, f"{HOW_MANUAL}\n")
    assert "make docs" in HOW_MANUAL


def test_a_manual_is_named_by_a_variable_or_is_to_be_none(folder: Path) -> None:
    assert manual_of({"LOOM_MANUAL": str(folder)}).index() == folder / "index.html"
    assert manual_of({"LOOM_MANUAL": "none"}).is_there is False
