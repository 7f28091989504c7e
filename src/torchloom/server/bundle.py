"""Find the built files of the dashboard: in the wheel, in a checkout, or none."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "LOOM_DASHBOARD"
NONE = "none"  # as a value: no dashboard
HOW = (
    "this plane has no dashboard: install torchloom without LOOM_NO_DASHBOARD, or run"
    " `make dashboard` in the checkout, then `loom down` and `loom up`"
)
_INDEX = "index.html"
_BUILT = Path(__file__).with_name("static")  # in an installed wheel
_CHECKOUT = Path(__file__).parents[3] / "dashboard" / "dist"


@dataclass(frozen=True, slots=True)
class Bundle:
    """A folder with a built dashboard, or the lack of one."""

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


def missing(env: Mapping[str, str]) -> str:
    """Return how to get the dashboard where none is found and none was named; else nothing."""
    return "" if env.get(VARIABLE) or bundle_of(env).is_there else HOW
