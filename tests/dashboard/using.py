"""How a person uses a control of a page, and what that did; the page tells both (effects.js)."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .showing import Shown

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Locator

RECORDER = Path(__file__).with_name("effects.js")
PATIENCE = 2000  # milliseconds until something that does nothing is called dead
SOON = 200  # milliseconds for what a field does besides keeping what was typed
NEAR = 3000  # milliseconds for a control to be there, in view and not covered
SMALL = 4  # pixels: nobody points at less
MARK = """(key) => {
  document.querySelector("[data-crawled]")?.removeAttribute("data-crawled");
  window.__effects.find(key)?.setAttribute("data-crawled", "");
}"""
OTHER = "(it) => [...it.options].find((one) => one.value !== it.value && !one.disabled)?.value"


@dataclass(frozen=True, slots=True)
class Control:
    """Something to use, as the page tells of it."""

    key: str  # which one
    kind: str  # it, and others that are like it
    name: str
    tag: str
    role: str
    type: str
    testid: str
    href: str
    is_idle: bool  # it leads to where one is, or is what is chosen: there is nothing to do
    is_shell: bool

    @property
    def is_last(self) -> bool:
        """Tell whether it sends something, or ends the visit."""
        return self.testid in ("confirm", "submit") or self.name == 'button "Sign out"'

    @property
    def is_field(self) -> bool:
        return self.tag in ("input", "select", "textarea") and self.type != "range"

    @property
    def is_text(self) -> bool:
        return self.is_field and self.tag != "select" and self.type not in ("checkbox", "radio")


class Hand:
    """Uses controls of one page."""

    def __init__(self, shown: Shown, many: int) -> None:
        self._page = shown.page
        self._many = many

    def controls(self) -> list[Control]:
        """Return every control that could be used now; many beside each other are of one kind."""
        found = self._page.evaluate("(many) => window.__effects.list(many)", self._many)
        return [Control(**each) for each in found]

    def settle(self) -> None:
        """Come back when the page is at rest; what the server tells from now on waits."""
        self._page.evaluate("window.__effects.settle()")

    def release(self) -> None:
        """Have the page hear what the server has told meanwhile."""
        self._page.evaluate("window.__effects.release()")

    def is_away(self) -> bool:
        """Tell whether a page that is not the dashboard's has come."""
        return bool(self._page.evaluate("!window.__effects || !document.getElementById('main')"))

    def press(self, *keys: str) -> list[str]:
        """Press keys; return what has happened."""
        self.settle()
        self._page.evaluate("window.__effects.begin()")
        for key in keys:
            self._page.keyboard.press(key)
        return self._happened(SOON)

    def use(self, control: Control) -> list[str]:
        """Use a control as a person does; return what has happened, nothing if it is dead."""
        found = self._found(control)
        is_unseen = self._is_unseen(found)
        if is_unseen:
            found.focus()
        else:
            found.hover(timeout=NEAR)  # what the pointer does on its way is no effect of a click
        self.settle()
        before = self._value(found)
        self._page.evaluate("(key) => window.__effects.begin(key)", control.key)
        self._act(control, found, is_unseen)
        if control.is_field or control.type == "range":
            self._happened(SOON)
            is_kept = not found.count() or self._value(found) != before  # else it was put back
            return ["value"] if is_kept else []
        happened = self._happened(PATIENCE)
        if control.role == "option" and not self._page.locator("dialog[open]").count():
            led = [each for each in happened if each in ("address", "leaves")]
            return led or (["left"] if self.is_away() else [])  # that its list closes is little
        return happened

    def again(self, control: Control) -> None:
        """Use a control whose effect is known, to get where it leads."""
        found = self._found(control)
        self._act(control, found, self._is_unseen(found))

    def _act(self, control: Control, found: "Locator", is_unseen: bool) -> None:
        if control.tag == "select":
            found.select_option(found.evaluate(OTHER), timeout=NEAR)
        elif control.is_text:
            found.press_sequentially("1", timeout=NEAR)
        elif control.type == "range":
            found.focus()
            was = self._value(found)
            self._page.keyboard.press("ArrowLeft")
            if self._value(found) == was:  # it was at its end
                self._page.keyboard.press("ArrowRight")
        elif is_unseen:
            found.focus()
            self._page.keyboard.press("Enter")
        else:
            found.click(timeout=NEAR)

    def _happened(self, patience: int) -> list[str]:
        found = self._page.evaluate("(patience) => window.__effects.effects(patience)", patience)
        return [str(each) for each in found]

    def _found(self, control: Control) -> "Locator":
        """Return a control of the page; it is marked there, to be found."""
        self._page.evaluate(MARK, control.key)
        found = self._page.locator("[data-crawled]")
        if found.count():
            found.scroll_into_view_if_needed(timeout=NEAR)
        return found

    def _is_unseen(self, found: "Locator") -> bool:
        """Tell whether a control is there for keys alone: nobody could point at it."""
        box = found.bounding_box(timeout=NEAR)
        return box is None or min(box["width"], box["height"]) < SMALL or box["y"] < 0

    def _value(self, found: "Locator") -> Any:
        return found.evaluate("(it) => /checkbox|radio/.test(it.type) ? it.checked : it.value")


def recorded(visitor: "BrowserContext") -> "BrowserContext":
    """Have all pages of a visitor write down what happens in them."""
    visitor.grant_permissions(["clipboard-read", "clipboard-write"])
    visitor.add_init_script(path=str(RECORDER))
    return visitor
