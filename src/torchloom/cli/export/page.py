"""The file itself: the page that was built with the dashboard, with a report's data inside."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchloom import settings
from torchloom.errors import Failure, UserError
from torchloom.server.bundle import bundle_of

NAME = "report.html"  # in the bundle
_PLACE = "__LOOM_REPORT__"  # in it, where the data goes
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


class NoReportPage(Failure):
    """The dashboard was not built, and the page of a report is a part of it."""

    code = "no_report_page"

    def __init__(self) -> None:
        super().__init__(
            "there is no page to put the run into: install a torchloom wheel that has the"
            " dashboard, or run `make dashboard` in the checkout; `--json` needs none"
        )


class FileThere(UserError):
    """The file exists, and nobody has said that it may go."""

    code = "file_there"

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is there already; --yes replaces it, or choose another name")


def page() -> str:
    """Return the page that data is put into."""
    found = bundle_of(settings.environment()).file(NAME)
    text = found.read_text(encoding="utf-8") if found else ""
    if _PLACE not in text:
        raise NoReportPage
    return text


def filled(text: str, report: Mapping[str, Any]) -> str:
    """Return a page with a report inside, of which nothing can end the element it stands in."""
    before, _, after = text.partition(_PLACE)
    data = as_text(report)
    for letter, code in _UNSAFE.items():
        data = data.replace(letter, code)  # outside of strings JSON has none of them
    return f"{before}{data}{after}"


def as_text(report: Mapping[str, Any]) -> str:
    """Return a report as JSON, in plain letters; what is no number there is null."""
    return json.dumps(_finite(report), separators=(",", ":"), allow_nan=False)


def check(path: Path, replace: bool) -> None:
    """Refuse a file that cannot be written before anything is read for it."""
    if not path.absolute().parent.is_dir():
        raise UserError(f"there is no folder {path.absolute().parent}; make it first")
    if path.is_dir() or (path.exists() and not replace):
        raise FileThere(path)


def write(path: Path, data: bytes) -> None:
    """Write a file that is there as a whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise Failure(f"cannot write {path}: {error.strerror or error}") from error


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
