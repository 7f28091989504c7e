"""Find the built files of dashboard and manual: in the wheel, in a checkout, or none."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "LOOM_DASHBOARD"
NONE = "none"  # as a value: no dashboard
HOW = (
    "this plane has no dashboard: install torchloom without LOOM_NO_DASHBOARD, or run"
    " `make dashboard` in the checkout, then `loom down` and `loom up`"
)
MANUAL_VARIABLE = "LOOM_MANUAL"
HOW_MANUAL = (
    "there is no manual here: install torchloom without LOOM_NO_DOCS, or run `make docs` in the"
    " checkout"
)
_INDEX = "index.html"
_BUILT = Path(__file__).with_name("static")  # in an installed wheel
_CHECKOUT = Path(__file__).parents[3] / "dashboard" / "dist"
_MANUAL_BUILT = Path(__file__).with_name("manual")
_MANUAL_CHECKOUT = Path(__file__).parents[3] / ".build" / "site"


@dataclass(frozen=True, slots=True)
class Bundle:
    """A folder with built pages, or the lack of one."""

    folder: Path | None

    @property
    def is_there(self) -> bool:
        return self.index() is not None

    def index(self) -> Path | None:
        """Return the page."""
        return self.file(_INDEX)

    def file(self, name: str) -> Path | None:
        """Return a file by its path within the folder; a path outside of it is not found."""
        if self.folder is None or "\0" in name:
            return None
        root = self.folder.resolve()
        found = (root / name).resolve()
        return found if found.is_relative_to(root) and found.is_file() else None


NO_BUNDLE = Bundle(None)


def bundle_of(env: Mapping[str, str]) -> Bundle:
    """Return the dashboard that is named, else that of the wheel, else that of the checkout."""
    named = env.get(VARIABLE, "")
    if named:
        return NO_BUNDLE if named == NONE else Bundle(Path(named).absolute())
    found = (each for each in (_BUILT, _CHECKOUT) if (each / _INDEX).is_file())
    return Bundle(next(found, None))


def manual_of(env: Mapping[str, str]) -> Bundle:
    """Return the manual that is named, else that of the wheel, else that of the checkout.

    The last one may be built later: whether it is there is seen when it is used.
    """
    named = env.get(MANUAL_VARIABLE, "")
    if named:
        return NO_BUNDLE if named == NONE else Bundle(Path(named).absolute())
    return Bundle(_MANUAL_BUILT if (_MANUAL_BUILT / _INDEX).is_file() else _MANUAL_CHECKOUT)


def missing(env: Mapping[str, str]) -> str:
    """Return how to get the dashboard where none is found and none was named; else nothing."""
    return "" if env.get(VARIABLE) or bundle_of(env).is_there else HOW
