"""Every view of the dashboard in a real browser: whole and readable, light, dark, on a phone.

A long form: it looks at twenty views in three ways each.
"""

from typing import TYPE_CHECKING, Any

import pytest

from ..harness.dashboard_build import ROOT
from ..harness.http_door import Door
from .looks import problems
from .showing import Shown
from .test_page import enter
from .views import visit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

pytestmark = [
    pytest.mark.process,
    pytest.mark.soak,
    *(pytest.mark.needs(what) for what in ("torch", "browser", "dashboard")),
]
AXE = ROOT / "dashboard" / "node_modules" / "axe-core" / "axe.min.js"
GRAVE = ("serious", "critical")
PHONE, DESK = {"width": 360, "height": 780}, {"width": 1280, "height": 900}


def test_every_view_is_whole_and_readable_in_light_and_dark_and_on_a_phone(
    visitor: "BrowserContext", door: Door, views: tuple[str, ...]
) -> None:
    if not AXE.exists():
        pytest.skip("the dashboard was built elsewhere: nothing that npm installs is here")
    shown = enter(visitor, door, "ada", "admin")
    shown.page.evaluate(f"() => {{ {AXE.read_text()} }}")

    wrong = [each for view in views for each in faults(shown, view)]

    assert wrong == []


def faults(shown: Shown, view: str) -> list[str]:
    """Return what is wrong with one view, by what axe and our own look find."""
    page = shown.page
    visit(shown, view)
    found = [f"light: {each}" for each in axe(shown, ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"])]
    page.emulate_media(color_scheme="dark")
    found += [f"dark: {each}" for each in axe(shown, ["color-contrast"])]
    page.emulate_media(color_scheme="light")
    found += [f"wide: {each}" for each in problems(page)]
    page.set_viewport_size(PHONE)
    page.wait_for_function("document.documentElement.clientWidth <= 360")
    found += [f"phone: {each}" for each in problems(page)]
    page.set_viewport_size(DESK)
    return [f"{view} {each}" for each in found]


def axe(shown: Shown, what: list[str]) -> list[str]:
    """Return the grave issues of these kinds, with the place of each."""
    told: dict[str, Any] = shown.page.evaluate(
        "(what) => axe.run({runOnly: what, resultTypes: ['violations']})", what
    )
    return [
        f"{issue['id']}: {node['target']} {node['failureSummary']}"
        for issue in told["violations"]
        if issue["impact"] in GRAVE
        for node in issue["nodes"]
    ]
