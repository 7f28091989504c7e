"""What came, in the order of its coming, as the bytes that the database keeps of it.

The bytes of one arrival are a row of records, each a header (generation, number of rows, number
of series), the series, the steps and the times of the rows, then for each series a value a row: 8
bytes each, little-endian.
"""

import struct
from array import array
from collections.abc import Container, Iterator, Sequence
from typing import TypeAlias

from torchloom.weaver.store.points import WIDTH, ints, raw

Part: TypeAlias = tuple[int, int, bytes, bytes, bytes]  # generation, points, steps, times, values

_RECORD = struct.Struct("<qII")


def record(generation: int, ids: Sequence[int], count: int, content: bytes) -> bytes:
    """Return the bytes of one record; `content` is steps, times and values."""
    return _RECORD.pack(generation, count, len(ids)) + raw(array("q", ids)) + content


def parts(data: bytes, wanted: Container[int] | None = None) -> Iterator[tuple[int, Part]]:
    """Yield what came for each series, or for those that are wanted."""
    at, known = 0, dict[bytes, tuple[tuple[int, int], ...]]()
    while at < len(data):
        generation, count, width = _RECORD.unpack_from(data, at)
        start = at + _RECORD.size
        times = start + width * WIDTH
        found = known.get(data[start:times])
        if found is None:
            ids = enumerate(ints(data[start:times]))
            found = tuple((n, series) for n, series in ids if wanted is None or series in wanted)
            known[data[start:times]] = found
        size = count * WIDTH
        at = times + (2 + width) * size
        if found:
            steps, moments = data[times : times + size], data[times + size : times + 2 * size]
            first = times + 2 * size
            for n, series in found:
                values = data[first + n * size : first + (n + 1) * size]
                yield series, (generation, count, steps, moments, values)
