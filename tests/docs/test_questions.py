"""What a new user asks is answered within two clicks from the first page, or by the first hit."""

import importlib.util
import shutil
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urldefrag, urljoin

import pytest
import uvicorn

from torchloom.server.app import Front, build, guarded
from torchloom.server.bundle import Bundle
from torchloom.server.plane_access import PlaneAccess
from torchloom.server.security.guard import reach
from torchloom.server.weaver_link import WeaverLink
from torchloom.weaver.store import DatabasePlace
from torchloom.weaver.store.reader import open_reading

from .world import ROOT

PATIENCE = 60_000  # milliseconds
MOST_CLICKS = 2


class Question(NamedTuple):
    """What is asked, what is typed to search, the page that answers, its clicks from the first."""

    question: str
    typed: str
    page: str
    clicks: int


QUESTIONS = (
    Question("How do I run my script on two GPUs?", "two gpus", "run-on-two-gpus", 1),
    Question("How do I run on Slurm?", "run on slurm", "run-on-slurm", 1),
    Question("Where are the loss curves?", "loss curves", "see-loss-curves", 1),
    Question("How do I log a metric?", "log a metric", "log-a-metric", 1),
    Question(
        "How do I resume with fewer ranks?", "resume fewer ranks", "resume-with-fewer-ranks", 1
    ),
    Question("How do I add a teammate?", "add teammate", "add-a-teammate", 1),
    Question(
        "How do I change the lr and undo it?", "change learning rate", "change-lr-and-undo", 1
    ),
    Question("How do I keep the best checkpoints?", "best checkpoints", "keep-best-checkpoints", 1),
    Question("Why did my job restart?", "why restarted", "why-did-it-restart", 1),
    Question(
        "Which rank is on which GPU?", "which rank which gpu", "which-rank-is-on-which-gpu", 1
    ),
    Question("How do I use Postgres and S3?", "postgres s3", "use-postgres-and-s3", 1),
    Question("How do I upgrade the plane?", "upgrade plane", "upgrade-the-plane", 1),
)


class Links(HTMLParser):
    """The links in the text of a page: those of menus would make every page one click away."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self._depth = 0
        self.found: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._depth += tag == "article"
        address = dict(attrs).get("href")
        if self._depth and tag == "a" and address:
            self.found.append(address)

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag == "article"


def clicks(site: Path, wanted: Path) -> int:
    """Return how many links one has to follow from the first page; -1 when none leads there."""
    seen, edge, count = {site / "index.html"}, [site / "index.html"], 0
    while edge:
        if wanted in edge:
            return count
        links = {
            Path(urldefrag(urljoin(str(page), link))[0])
            for page in edge
            for link in Links(page).found
            if "://" not in link
        }
        edge = [page for page in sorted(links - seen) if page.suffix == ".html" and page.is_file()]
        seen |= links
        count += 1
    return -1


@pytest.fixture(scope="module")
def site() -> Path:
    """Give the manual of this checkout, built."""
    found = importlib.util.spec_from_file_location("loom_docs", ROOT / "make" / "docs.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    built: Path = module.built()
    return built


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or "chromium"
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def served(site: Path, tmp_path: Path) -> Iterator[str]:
    """Serve the manual as a plane does, with its headers; give the address."""
    config = uvicorn.Config("", host="127.0.0.1", port=0, log_level="error", lifespan="off")
    listener = config.bind_socket()
    port = listener.getsockname()[1]
    access = PlaneAccess(
        WeaverLink(tmp_path / "none"), open_reading(DatabasePlace(tmp_path)), tmp_path
    )
    front = Front(reach(port), manual=Bundle(site))
    config.app = guarded(build(access, front), front)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{port}/manual/"
    server.should_exit = True
    thread.join(30)


def first_hit(page: Any, typed: str) -> str:
    """Type into the search of a page just opened; return the address of the first page it shows."""
    field = page.locator("input.md-search__input")
    field.fill(typed)
    field.press("End")  # the search listens to keys
    hit = page.locator(".md-search-result__item a").first
    hit.wait_for(timeout=PATIENCE)
    return str(urldefrag(urljoin(page.url, hit.get_attribute("href")))[0]).partition("?")[0]


def opened(browser: Any, address: str) -> tuple[Any, list[str]]:
    """Open a page; return it and the list of what goes wrong in it or leaves it."""
    page = browser.new_page()
    wrong: list[str] = []
    own = urljoin(address, ".")
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request",
        lambda asked: None if asked.url.startswith((own, "data:")) else wrong.append(asked.url),
    )
    page.goto(address)
    return page, wrong


@pytest.mark.process
@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda asked: asked.page)
def test_a_question_of_a_new_user_is_two_clicks_away_at_most(asked: Question, site: Path) -> None:
    found = clicks(site, site / "guides" / f"{asked.page}.html")

    print(f"{asked.question} -> {asked.page}: {found} clicks")
    assert found == asked.clicks <= MOST_CLICKS


@pytest.mark.process
@pytest.mark.needs("browser")
def test_the_first_hit_of_the_search_answers_without_a_server(site: Path, browser: Any) -> None:
    page, wrong = opened(browser, (site / "index.html").as_uri())
    hits = {}
    for asked in QUESTIONS:
        page.reload()  # else the hits of the question before are still there
        hits[asked.typed] = first_hit(page, asked.typed)

    wanted = {a.typed: (site / "guides" / f"{a.page}.html").as_uri() for a in QUESTIONS}
    assert hits == wanted
    assert wrong == []


@pytest.mark.process
@pytest.mark.needs("browser")
def test_the_first_hit_of_the_search_answers_on_a_plane(served: str, browser: Any) -> None:
    page, wrong = opened(browser, served)
    asked = QUESTIONS[1]

    assert first_hit(page, asked.typed) == f"{served}guides/{asked.page}.html"
    page.locator(".md-search-result__item a").first.click()
    page.wait_for_url(f"{served}guides/{asked.page}.html*", timeout=PATIENCE)
    assert page.locator("h1").first.inner_text().startswith("Run on Slurm")
    assert wrong == []


def test_a_page_that_no_link_reaches_is_no_answer(tmp_path: Path) -> None:
    article = "<a href='stray.html'>menu</a><article><a href='{}'>x</a></article>"
    (tmp_path / "guides").mkdir()
    (tmp_path / "index.html").write_text(article.format("guides/a.html#there"))
    (tmp_path / "guides/a.html").write_text(article.format("../b.html"))
    (tmp_path / "b.html").write_text(article.format("guides/a.html"))
    (tmp_path / "stray.html").write_text("")

    names = ("index", "guides/a", "b", "stray")
    assert [clicks(tmp_path, tmp_path / f"{name}.html") for name in names] == [0, 1, 2, -1]
