"""Read the error files that ranks write (torchelastic's `@record`) and find the first by time."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

from torchloom.specs.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ErrorFile:
    """An error file: its text, and when it was written."""

    text: str
    written: float

    @classmethod
    def read(cls, path: Path) -> "ErrorFile | None":
        with contextlib.suppress(OSError):
            return cls(path.read_text(errors="replace"), path.stat().st_mtime)
        return None


def first_error(reports: Iterable[ErrorFile | None]) -> str | None:
    """Return the text of the error that happened first, as its rank wrote it."""
    # `@record` knows whole seconds only: within one, the file that was there first
    found = [(int(_timestamp(each)), each.written, each.text) for each in reports if each]
    return min(found)[-1] if found else None


def put_aside(path: Path, attempt: int | str) -> None:
    """Keep an earlier attempt's error under its number, so that a new one is really new."""
    with contextlib.suppress(OSError):
        path.rename(path.with_name(f"error.{attempt}.json"))


def _timestamp(error: ErrorFile) -> float:
    """Return when the error happened, by its own word; without one, when the file was written."""
    from torchloom.specs.status import read_error  # only where a rank has failed

    report = read_error(error.text)
    with contextlib.suppress(ValueError, TypeError):
        return float(report.timestamp) if report else error.written  # type: ignore[arg-type]
    return error.written
