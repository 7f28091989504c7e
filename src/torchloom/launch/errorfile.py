"""Read the error files that ranks write (torchelastic's `@record`) and find the first by time."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

from torchloom.specs.status_text import read_error


def first_error(paths: Iterable[Path]) -> str | None:
    """Return the text of the error that happened first, as its rank wrote it."""
    found: list[tuple[float, float, str]] = []
    for path in paths:
        with contextlib.suppress(OSError):
            text, written = path.read_text(errors="replace"), path.stat().st_mtime
            # `@record` knows whole seconds only: within one, the file that was there first
            found.append((int(_timestamp(text, written)), written, text))
    return min(found)[-1] if found else None


def put_aside(path: Path, attempt: int) -> None:
    """Keep an earlier attempt's error under its number, so that a new one is really new."""
    with contextlib.suppress(OSError):
        path.rename(path.with_name(f"error.{attempt}.json"))


def _timestamp(text: str, otherwise: float) -> float:
    """Return when the error happened, by its own word; without one, when the file was written."""
    report = read_error(text)
    with contextlib.suppress(ValueError, TypeError):
        return float(report.timestamp) if report else otherwise  # type: ignore[arg-type]
    return otherwise
