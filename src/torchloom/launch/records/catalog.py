"""All runs this state folder knows, read fast: thousands of ended ones are no burden.

A run's folder is the truth. What ended does not change any more, so one line about each ended run
is kept in an index beside the folders; the index may be lost, torn or stale without harm.
"""

import contextlib
import json
import os
from collections.abc import Iterable
from typing import Any

from torchloom import settings
from torchloom.launch.records.folder import RunFolder, all_folders
from torchloom.launch.records.record import RunRecord
from torchloom.specs.api import AppState
from torchloom.unix import open_file

_INDEX = ".ended.jsonl"
_FIELDS = (
    *("id", "name", "session", "owner", "host", "log_dir", "created_at"),
    *("state", "reason", "restarts", "started_at", "ended_at", "parent", "step"),
)
_LONGEST = 1 << 28  # bytes of the index
_SLACK = 2  # lines a run, before the index is written anew


def records() -> list[RunRecord]:
    """Return every run as it truly is now, newest first, without its ranks.

    What a run's own ranks have launched belongs to that run and is not listed.
    """
    own = [record for record in everything() if not record.parent]
    return sorted(own, key=lambda record: record.created_at, reverse=True)


def everything() -> list[RunRecord]:
    """Return the same with what ranks have launched, in no order."""
    index, lines = _read_index()
    found, news = [], []
    for folder in all_folders():
        known = index.get(folder.app_id)
        if known is None and (known := _read(folder)) is not None and known.is_over():
            news.append(known)
        if known is not None:
            found.append(known.truth())
    with contextlib.suppress(OSError):  # a folder that cannot be written is only slower
        _write_index(news, found, lines)
    return found


def record(app_id: str) -> RunRecord | None:
    """Return one run as it truly is now, or nothing.

    An id comes from outside: one that could leave the folder of runs names nothing.
    """
    if not app_id or app_id.startswith(".") or "/" in app_id:
        return None
    folder = RunFolder.named(app_id)
    with contextlib.suppress(OSError):  # a name that no file can have
        if folder.path.is_dir() and (known := _read(folder)) is not None:
            return known.truth()
    return None


def _read(folder: RunFolder) -> RunRecord | None:
    """Return a run's record; one that cannot be understood is a failed run that can be removed."""
    try:
        return folder.record()
    except OSError:  # no run, or being removed
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return folder.damaged()


def note_resumed(app_id: str) -> None:
    """Note that a run which had ended has not: its folder is to be read again."""
    with contextlib.suppress(OSError):
        _append([json.dumps([app_id]) + "\n"])


def add_ended(ended: RunRecord) -> None:
    """Note a run that has just ended; without the note the next list is slower, not wrong."""
    with contextlib.suppress(OSError):
        _append([_line(ended)])


def _write_index(news: list[RunRecord], found: list[RunRecord], lines: int) -> None:
    if lines > _SLACK * len(found) + 100:
        path = settings.runs_dir() / _INDEX
        partial = path.with_name(f"{_INDEX}.{os.getpid()}.partial")
        partial.write_text("".join(_line(record) for record in found if record.is_over()))
        partial.replace(path)
    elif news:
        _append(map(_line, news))


def _append(lines: Iterable[str]) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK  # no FIFO holds it up
    fd = os.open(settings.runs_dir() / _INDEX, flags, 0o600)
    try:
        os.write(fd, "".join(lines).encode())
    finally:
        os.close(fd)


def _line(record: RunRecord) -> str:
    values = [getattr(record, name) for name in _FIELDS]
    return json.dumps(values) + "\n"


def _read_index() -> tuple[dict[str, RunRecord], int]:
    """Return the ended runs by id, and how many lines they took."""
    try:
        with open_file(settings.runs_dir() / _INDEX) as file:
            lines = file.read(_LONGEST).splitlines()
    except OSError:
        return {}, 0
    index: dict[str, RunRecord] = {}
    for line in lines:
        with contextlib.suppress(ValueError, TypeError):  # a torn line says nothing
            values: list[Any] = json.loads(line)
            if len(values) == 1:
                index.pop(values[0], None)
                continue
            known = dict(zip(_FIELDS, values, strict=True))
            index[known["id"]] = RunRecord(**{**known, "state": AppState(known["state"])})
    return index, len(lines)
