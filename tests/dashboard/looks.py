"""How a page looks, checked by machine: nothing is cut, nothing lies on other text, nothing scrolls
sideways."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

SCRIPT = Path(__file__).with_name("looks.js").read_text()


def problems(page: "Page") -> list[str]:
    """Return what is wrong with how a page looks now, a line each; text in a canvas is not seen."""
    found: list[str] = page.evaluate(SCRIPT)
    return found
