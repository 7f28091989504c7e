"""No control of the dashboard is dead: each is used in a real browser, and has an effect.

The short form uses each kind of control once, as who may least; the long one all of every view as
everybody, and at the end what sends something.
"""

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from ..harness.http_door import Door
from ..harness.plane_jobs import loom
from .crawling import Crawl
from .showing import Shown
from .test_page import enter
from .using import recorded
from .views import VIEWS, visit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

pytestmark = [
    pytest.mark.process,
    *(pytest.mark.needs(what) for what in ("torch", "browser", "dashboard")),
]
PEOPLE = (("vera", "viewer"), ("olga", "operator"), ("ada", "admin"))  # who may least is first
OWN = ("/api/me/", "/api/logout")  # what even a viewer may change
QUESTIONS = ("/api/experiments/compare",)  # sent because they are long; nothing is changed
FEW, SOME = 2, 8  # controls alike beside each other; where there are more, one of them is used
LATE = ("", "resize", "stop", "cancel")  # in this order, after all others
JOB = VIEWS.index("/jobs/{job}")
LOGS = VIEWS.index("/jobs/{job}/logs")
TABLES = ("/ranks", "/events", "?view=table", "/experiments", "/cluster", "/settings")
ROWS = "[role=row], tr, [data-row]"
PLANT = """new MutationObserver(() => {
  const bar = document.querySelector("header");
  if (!bar || bar.querySelector("[data-planted]")) return;
  const button = Object.assign(document.createElement("button"), { textContent: "Planted" });
  button.dataset.planted = "";
  bar.append(button);
}).observe(document, { childList: true, subtree: true });"""


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Return the kinds of controls that somebody has used before."""
    return set()


@pytest.mark.soak
@pytest.mark.parametrize(("user", "role"), PEOPLE)
def test_every_kind_of_control_has_an_effect(
    visitor: "BrowserContext",
    door: Door,
    views: tuple[str, ...],
    known: set[str],
    user: str,
    role: str,
) -> None:
    crawl = Crawl(enter(recorded(visitor), door, user, role), FEW, known)

    for view in views:
        crawl.view(view)
    if role == "operator":
        crawl.keys(views[LOGS])

    checks(crawl, views, role)
    ends(crawl, door, user, role)


@pytest.mark.soak
@pytest.mark.parametrize(("user", "role"), PEOPLE)
def test_every_control_of_every_view_has_an_effect(
    visitor: "BrowserContext", door: Door, views: tuple[str, ...], user: str, role: str
) -> None:
    crawl = Crawl(enter(recorded(visitor), door, user, role), SOME)

    for view in views:
        crawl.forget()
        crawl.view(view)
        crawl.keys(view)

    checks(crawl, views, role)
    ends(crawl, door, user, role)


def checks(crawl: Crawl, views: tuple[str, ...], role: str) -> None:
    """Check what a crawl has found: nothing is dead, nothing leads where the crawl has not been."""
    assert crawl.faults == []
    assert {page(path) for path in crawl.paths} <= {"/", *(page(view) for view in views)}
    assert (crawl.shown.strangers(), crawl.shown.wrong) == ([], [])
    if role == "viewer":
        assert [path for path in crawl.sent if not path.startswith((*OWN, *QUESTIONS))] == []


def page(address: str) -> str:
    """Return which page an address means, of whichever job."""
    return re.sub(r"^/jobs/[^/]+", "/jobs/JOB", urlsplit(address).path)


def ends(crawl: Crawl, door: Door, user: str, role: str) -> None:
    """Do what is left for the end: revoke a token of one's own, and leave."""
    shown = crawl.shown
    loom("tokens", "add", user, "--role", role, "--label", "spare")
    [spare] = [
        one["id"] for one in door.ask("/api/tokens", user=user)["items"] if one["label"] == "spare"
    ]
    shown.page.goto(f"{door.url}/settings")
    row = shown.part("token", f'[data-token="{spare}"]')
    row.locator('[data-testid="token-revoke"]').click()
    shown.part("confirm", ":enabled").click()
    row.wait_for(state="detached")
    shown.part("role").click()
    shown.page.get_by_role("button", name="Sign out").click()
    shown.part("login-help").wait_for()


def test_a_button_that_does_nothing_is_found(
    visitor: "BrowserContext", door: Door, plane: object
) -> None:
    visitor.add_init_script(PLANT)
    crawl = Crawl(enter(recorded(visitor), door, "vera", "viewer"), FEW)

    crawl.view("/nothing")

    assert crawl.faults == ['/nothing: button "Planted" does nothing']


def test_keys_go_to_the_filter_through_what_it_finds_and_along_the_logs(
    visitor: "BrowserContext", door: Door, views: tuple[str, ...]
) -> None:
    shown = enter(visitor, door, "vera", "viewer")
    words, keys = shown.part("job-filter"), shown.page.keyboard

    shown.part("job-row").first.wait_for()
    for key in ("/", *"sho", "Escape"):
        keys.press(key)
    shown.page.wait_for_url("**q=sho")
    keys.press("j")
    shown.waits(lambda: focused(shown) == "shown")
    assert words.input_value() == "sho"
    keys.press("Escape")
    shown.waits(lambda: words.input_value() == "" and "q=" not in shown.page.url)

    visit(shown, views[LOGS])
    shown.part("log-line").first.wait_for()
    lines = [step_to(shown, key) for key in ("k", "k", "j")]
    assert lines[0] == lines[2] == lines[1] + 1
    shown.part("log-list", '[data-follow="false"]').wait_for()  # who reads is not moved
    for view in TABLES:
        visit(shown, next(one for one in views if one.endswith(view)))
        keys.press("j")
        assert shown.page.evaluate(f"document.activeElement.closest({ROWS!r}) !== null"), view


def focused(shown: Shown) -> str:
    return str(shown.page.evaluate("document.activeElement.textContent"))


def step_to(shown: Shown, key: str) -> int:
    """Go by a row of the logs; return which one that is."""
    shown.page.keyboard.press(key)
    return int(shown.page.evaluate("document.activeElement.closest('[data-row]').dataset.index"))


@pytest.mark.soak
def test_every_control_of_a_job_does_what_it_says_when_it_is_confirmed(
    visitor: "BrowserContext", door: Door, views: tuple[str, ...], job: str
) -> None:
    shown = enter(visitor, door, "olga", "operator")
    done: set[str] = set()
    visit(shown, views[JOB])

    while verb := left(shown, done):
        shown.page.locator(f'[data-verb="{verb}"]').click()
        if verb == "set":
            shown.part("knob-value").fill("0.03")
        if verb == "resize":
            shown.page.get_by_label("Ranks").fill("1")
        shown.part("confirm", ":enabled").click()
        shown.part("outcome", ':is([data-state="applied"], [data-state="done"])').wait_for()
        shown.page.get_by_role("button", name="Done", exact=True).click()
        done.add(verb)
        other = {"pause": "resume", "resume": "pause"}.get(verb)
        if other:
            shown.page.locator(f'[data-verb="{other}"]').wait_for()

    assert {"set", "pause", "resume", "checkpoint", "stop"} <= done
    assert door.ends(job)["state"] == "CANCELLED"
    told = {one["kind"] for one in door.ask(f"/api/jobs/{job}/commands")["items"]}
    assert {"knob", "pause", "resume", "checkpoint", "stop"} <= told


def left(shown: Shown, done: set[str]) -> str:
    """Return a control that is there and was not confirmed; empty when there is none."""
    found = [str(one.get_attribute("data-verb")) for one in shown.page.locator("[data-verb]").all()]
    found.sort(key=lambda one: LATE.index(one) if one in LATE else 0)
    return next((one for one in found if one not in done), "")
