"""All runs this state folder knows, read fast: thousands of ended ones are no burden."""

import contextlib

from torchloom.launch.folder import RunFolder, all_folders
from torchloom.launch.record import Record


def records() -> list[Record]:
    """Return every run as it truly is now, newest first; a damaged record is left out."""
    found = []
    for folder in all_folders():
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found.append(folder.record().truth())
    return sorted(found, key=lambda record: record.created_at, reverse=True)


def record(app_id: str) -> Record | None:
    """Return one run as it truly is now, or nothing.

    An id comes from outside: one that could leave the folder of runs names nothing.
    """
    if not app_id or app_id.startswith(".") or "/" in app_id:
        return None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return RunFolder.named(app_id).record().truth()
    return None
