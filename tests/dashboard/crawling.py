"""A crawl over the dashboard: every control that a view has is used, and must have an effect.

Which controls there are is asked of the page itself, by tag and role, so a new button is used
without a word here. What comes after a use (a dialog, a panel, a menu) is gone through, too.
Buttons that send something are left for the end: see `test_controls.py`.
"""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from .showing import Shown
from .using import Control, Hand
from .views import visit

if TYPE_CHECKING:
    from playwright.sync_api import Request, Response

DEPTH = 3  # a field, the dialog that it leads to, a panel in that
NOWHERE = "/nothing"
REFUSED, WRONG = (401, 403), 400
AGAIN = 4  # times that a key which should do nothing is pressed when something happened
ROWS = 100  # of a list that are looked at
OPENS = "document.activeElement.matches('a[href], button')"
SHEET = "(all) => all.map(({ dataset }) => [dataset.keys, dataset.here === 'true'])"

Way = tuple[Control, ...]


class Crawl:
    """One visitor's way through the views; whatever is wrong is a line in `faults`."""

    def __init__(self, shown: Shown, many: int, known: set[str] | None = None) -> None:
        self.shown = shown
        self.known = set() if known is None else known  # kinds that need not be used again
        self.faults: list[str] = []
        self.used: list[str] = []
        self.paths: set[str] = set()  # that links of ours lead to
        self.sent: set[str] = set()  # paths that were asked for more than an answer
        self._hand = Hand(shown, many)
        self._shell: set[str] = set()  # kinds that are around every view
        self._answers: list[tuple[int, str]] = []
        self._at: tuple[str, Way] | None = None
        self._bare: dict[str, list[str]] = {}  # what a view has as one comes to it
        shown.page.on("response", self._answered)
        shown.page.on("request", self._asked)

    def _answered(self, response: "Response") -> None:
        if response.status >= WRONG:
            self._answers.append((response.status, response.url))

    def _asked(self, request: "Request") -> None:
        if request.method != "GET":
            self.sent.add(urlsplit(request.url).path)

    def forget(self) -> None:
        """Have all used again in the next view, but what is around every one."""
        self.known = set(self._shell)

    def view(self, address: str, way: Way = ()) -> None:
        """Use every control of a view, and of what these uncover; a way is what is used before."""
        self._reach(address, way)
        fresh = self._fresh()
        self.known |= {control.kind for control in fresh}  # what these uncover is looked for beside
        for control in fresh:
            self._reach(address, way)
            if self._use(control, address) and len(way) < DEPTH:
                self._go_on(control, address, way)

    def _fresh(self) -> list[Control]:
        """Return the controls that are to be used, one of each kind."""
        here = self._hand.controls()
        ours = [urlsplit(each.href).path for each in here if self._is_ours(each.href)]
        self.paths.update(ours)
        self._shell |= {each.kind for each in here if each.is_shell and not each.is_idle}
        usable = [each for each in here if not each.is_idle and not each.is_last]
        return list({each.kind: each for each in usable if each.kind not in self.known}.values())

    def _go_on(self, control: Control, address: str, way: Way) -> None:
        """Go through what a control has uncovered, unless it has led elsewhere."""
        self._hand.release()
        path = urlsplit(self.shown.page.url).path
        if path != urlsplit(address).path:
            self.paths.add(path)
        elif self._fresh():
            self._at = (address, (*way, control))
            self.view(address, (*way, control))

    def keys(self, address: str) -> None:
        """Press every shortcut that the sheet names: it must do something where it says so."""
        self._reach(address, ())
        self._hand.press("?")
        self.shown.part("key").first.wait_for()
        for keys, is_here in self.shown.part("key").evaluate_all(SHEET):
            self.used.append(f"{address}: {keys}")
            happened = self._pressed(address, keys, is_here)
            for _ in range(0 if is_here else AGAIN):  # what the job does is no answer to a key
                happened = happened and self._pressed(address, keys, is_here)
            if is_here != bool(happened):
                says = "does nothing" if is_here else f"is not here, and does {happened}"
                self.faults.append(f"{address}: the key {keys} {says}")
        self._at = None

    def _pressed(self, address: str, keys: str, is_here: bool) -> list[str]:
        """Come to a view and press keys; return what has happened."""
        self._at = None
        self._reach(address, ())
        if is_here and keys == "Enter":
            self._go_to_a_row()
        if is_here and keys == "Escape":
            self._hand.press("/", "a", "Escape")  # what it leaves, and then clears
        return self._hand.press(*keys.split())

    def _go_to_a_row(self) -> None:
        """Go along the rows to one that can be opened: not every one of a list need be."""
        for key in "jk":
            for _ in range(ROWS):
                if not self._hand.press(key):
                    break  # the end
                if self.shown.page.evaluate(OPENS):
                    return

    def _use(self, control: Control, address: str) -> bool:
        """Use a control; return whether it had an effect and the page is still ours."""
        from playwright.sync_api import Error

        where, at, url = f"{address}: {control.name}", self._at, self.shown.page.url
        keys, alerts, count = self._keys(), self._alerts(), len(self._answers)
        self._at = None
        self.used.append(where)
        try:
            happened = self._hand.use(control)
        except Error as error:  # it is covered, moves, or has gone
            if "context was destroyed" not in str(error):
                if control.key not in self._keys():
                    return False  # the job went on, and has taken it away
                said = " ".join(str(error).split())[:300]
                self.faults.append(f"{where} cannot be used: {said}")
                return False
            self.shown.page.wait_for_load_state()
            happened = ["left"]
        if not happened:
            self.faults.append(f"{where} does nothing")
        if self._hand.is_away():
            return False
        self._look(control, where, alerts, count)
        if self.shown.page.url == url and self._keys() == keys:
            self._at = at  # as it was
        return bool(happened)

    def _look(self, control: Control, where: str, alerts: set[str], count: int) -> None:
        """See whether a use was refused, or has led to trouble; what is typed may be wrong."""
        self.faults += [
            f"{where} is refused: {status} {url}"
            for status, url in self._answers[count:]
            if status in REFUSED or not control.is_field
        ]
        if not control.is_field and (new := self._alerts() - alerts):
            self.faults.append(f"{where} leads to trouble: {new}")

    def _alerts(self) -> set[str]:
        return set(self.shown.page.locator("[role=alert]").all_text_contents())

    def _keys(self) -> list[str]:
        return [each.key for each in self._hand.controls()]

    def _is_ours(self, href: str) -> bool:
        return href.startswith(f"{self.shown.door.url}/") and not href.endswith(
            ("/docs", "/manual/")
        )

    def _reach(self, address: str, way: Way) -> None:
        """Be at a view as one comes to it, and then use what is on the way."""
        if self._at == (address, way):
            return
        if self._hand.is_away():
            self.shown.page.goto(self.shown.door.url)
            self.shown.part("live-dot", '[data-state="live"]').wait_for()
        self._hand.release()
        self.shown.page.keyboard.press("Escape")
        self.shown.page.evaluate("document.activeElement?.blur()")
        visit(self.shown, address)
        self._hand.settle()
        if self._bare.get(address) != self._keys():  # something of before is still open
            self._hand.release()
            visit(self.shown, NOWHERE)
            visit(self.shown, address)
            self._hand.settle()
            self._bare[address] = self._keys()
        for control in way:
            self._hand.release()
            self._hand.again(control)
            self._hand.settle()
        self._at = (address, way)
