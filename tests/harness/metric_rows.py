"""Read metrics from `records` by docs/internals/metrics.md alone; imports nothing of torchloom."""

import contextlib
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

Place: TypeAlias = tuple[str, str, int, str, int]  # job, name, rank, role, step


class Shown(NamedTuple):
    """A point, with the generation that told it."""

    generation: int
    time: float
    value: float


def in_file(path: Path) -> dict[Place, Shown]:
    """Return all points that a file shows at one moment; its writer may be at work."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
        base.execute("BEGIN")
        return shown(base)


def shown(base: Any, schema: str = "") -> dict[Place, Shown]:
    """Return all points that a database shows."""
    words = f"SELECT id, job, name, rank, role FROM {schema}series"
    names = {key: tuple(its) for key, *its in base.execute(words).fetchall()}
    found: dict[Place, Shown] = {}
    for key, step, point in (*_chunks(base, schema), *_arrivals(base, schema)):
        place = (*names[key], step)
        if place not in found or found[place].generation <= point.generation:
            found[place] = point
    return found


def replaced_in_file(path: Path) -> dict[Place, dict[int, Shown]]:
    """Return the points that a file keeps but does not show, by place and generation."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
        base.execute("BEGIN")
        return replaced(base)


def replaced(base: Any, schema: str = "") -> dict[Place, dict[int, Shown]]:
    """Return the points that a database keeps but does not show, by place and generation."""
    words = f"SELECT id, job, name, rank, role FROM {schema}series"
    names = {key: tuple(its) for key, *its in base.execute(words).fetchall()}
    found: dict[Place, dict[int, Shown]] = {}
    kept = (*_chunks(base, schema, "kind = 2"), *_chunks(base, schema), *_arrivals(base, schema))
    for key, step, point in kept:
        found.setdefault((*names[key], step), {})[point.generation] = point
    older = {place: dict(sorted(its.items())[:-1]) for place, its in found.items()}
    return {place: its for place, its in older.items() if its}


def _chunks(base: Any, schema: str, which: str = "kind < 2") -> Iterator[tuple[int, int, Shown]]:
    # Sealed ones are older than loose ones.
    order = "ORDER BY series, kind DESC, number"
    words = f"SELECT series, data FROM {schema}chunks WHERE {which} {order}"
    for key, data in base.execute(words).fetchall():
        at = 0
        while at < len(data):
            generation, count = struct.unpack_from("<qq", data, at)
            steps = struct.unpack_from(f"<{count}q", data, at + 16)
            numbers = struct.unpack_from(f"<{2 * count}d", data, at + 16 + 8 * count)
            for n, step in enumerate(steps):
                yield key, step, Shown(generation, numbers[n], numbers[count + n])
            at += 16 + 24 * count


def _arrivals(base: Any, schema: str) -> Iterator[tuple[int, int, Shown]]:
    merged = f"(SELECT merged FROM {schema}progress)"
    words = f"SELECT data FROM {schema}arrivals WHERE number > {merged} ORDER BY number"
    for (data,) in base.execute(words).fetchall():
        at = 0
        while at < len(data):
            generation, rows, width = struct.unpack_from("<qII", data, at)
            keys = struct.unpack_from(f"<{width}q", data, at + 16)
            steps = struct.unpack_from(f"<{rows}q", data, at + 16 + 8 * width)
            numbers = (1 + width) * rows
            cells = struct.unpack_from(f"<{numbers}d", data, at + 16 + 8 * (width + rows))
            for n, key in enumerate(keys):
                for row, step in enumerate(steps):
                    value = cells[(1 + n) * rows + row]
                    yield key, step, Shown(generation, cells[row], value)
            at += 16 + 8 * (width + rows + numbers)
