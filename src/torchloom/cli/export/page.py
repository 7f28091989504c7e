"""The exported file: a page built with the dashboard, with the data of a report inside."""

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
    """The dashboard, which contains the page of a report, was not built."""

    code = "no_report_page"

    def __init__(self) -> None:
        super().__init__(
            "the page of a report is missing: install a torchloom wheel with the dashboard,"
            " or run `make dashboard` in the checkout; `--json` does not need it"
        )


class FileThere(UserError):
    """The output file exists and `--yes` was not given."""

    code = "file_there"

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} exists; --yes replaces it, or choose another name")


def page() -> str:
    """Return the page with the placeholder for the data."""
    found = bundle_of(settings.environment()).file(NAME)
    text = found.read_text(encoding="utf-8") if found else ""
    if _PLACE not in text:
        raise NoReportPage
    return text


def filled(text: str, report: Mapping[str, Any]) -> str:
    """Return the page with a report inside, escaped so that it cannot end its HTML element."""
    before, _, after = text.partition(_PLACE)
    data = as_text(report)
    for letter, code in _UNSAFE.items():
        data = data.replace(letter, code)  # outside of strings JSON has none of them
    return f"{before}{data}{after}"


def as_text(report: Mapping[str, Any]) -> str:
    """Return a report as ASCII JSON; numbers that are not finite become null."""
    return json.dumps(_finite(report), separators=(",", ":"), allow_nan=False)


def check(path: Path, replace: bool) -> None:
    """Refuse an output file that cannot be written, before data is read."""
    if not path.absolute().parent.is_dir():
        raise UserError(f"the folder {path.absolute().parent} does not exist")
    if path.is_dir() or (path.exists() and not replace):
        raise FileThere(path)


def write(path: Path, data: bytes) -> None:
    """Write a file atomically."""
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
