"""Bytes on their way to the disk: none lost, none twice, aligned where they were."""

import ctypes
import mmap
import random
import subprocess
import sys
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom.checkpoint import Draft, LocalStorage
from torchloom.checkpoint.stream import (
    ALIGN,
    CHUNK,
    chunks,
    fetched,
    filling,
    hash_of,
    mapped,
    memory,
    read,
)

from .faults import Stubborn

PIECES = st.lists(
    st.tuples(st.sampled_from([0, 1, 100, ALIGN]), st.sampled_from([0, 1, 700, ALIGN, 3 * ALIGN])),
    max_size=8,
)


def _buffers(pieces: list[tuple[int, int]]) -> list[memoryview]:
    """Return views of memory that begin so far behind a page's beginning and are so long."""
    made = []
    for number, (start, length) in enumerate(pieces, 1):
        pages = mmap.mmap(-1, start + length + 1)
        pages.write(bytes([number]) * (start + length))
        made.append(memoryview(pages)[start : start + length])
    return made


@settings(max_examples=200)
@given(PIECES)
def test_chunks_are_the_bytes_in_order_and_whole_pages(pieces: list[tuple[int, int]]) -> None:
    buffers = _buffers(pieces)

    got = [bytes(chunk) for chunk in chunks(buffers)]

    assert b"".join(got) == b"".join(map(bytes, buffers))
    assert all(len(chunk) % ALIGN == 0 for chunk in got[:-1])


LATE = """
import atexit, concurrent.futures.thread, os, sys, threading
from torchloom.checkpoint.stream import Disk, write

def save():
    ending.wait()
    descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
    print(write(Disk(), descriptor, [memoryview(b"late" * 5000)], None).hash)

def wait():
    ending.set()
    saving.join()

ending = threading.Event()
saving = threading.Thread(target=save, daemon=True)
saving.start()
atexit.register(wait)
"""


@pytest.mark.process
def test_what_is_written_while_python_exits_is_written_whole(tmp_path: Path) -> None:
    words = [sys.executable, "-c", LATE, str(tmp_path / "file")]
    done = subprocess.run(words, capture_output=True, text=True)

    assert (tmp_path / "file").read_bytes() == b"late" * 5000, done.stderr
    assert done.stdout.strip() == f"blake3:{blake3(b'late' * 5000).hexdigest()}"


def test_what_lies_aligned_is_not_copied() -> None:
    large = memoryview(memory(CHUNK + 2 * ALIGN))
    head = memoryview(b"h" * ALIGN)

    got = list(chunks([head, large, memoryview(b"tail")]))

    assert [len(chunk) for chunk in got] == [ALIGN, CHUNK, 2 * ALIGN, 4]
    large[0] = large[-1] = 7
    assert (got[1][0], got[2][-1]) == (7, 7)


def test_other_shapes_of_memory_are_taken_as_bytes(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    numbers = memoryview(bytearray(range(80))).cast("d")

    written = storage.write_shard(Draft(1, 0, 1), "worker_0.pt", [numbers, numbers])

    path = tmp_path / "ckpt_step_00001.g0-1" / "worker_0.pt"
    assert path.read_bytes() == bytes(range(80)) * 2
    assert written.hash == f"blake3:{blake3(bytes(range(80)) * 2).hexdigest()}"


def test_a_disk_that_refuses_direct_writes_gets_them_through_the_cache(tmp_path: Path) -> None:
    whole = memoryview(memory(2 * ALIGN + 3))
    whole[-1] = 9

    LocalStorage(str(tmp_path), Stubborn()).write_shard(Draft(1, 0, 1), "worker_0.pt", [whole])

    assert (tmp_path / "ckpt_step_00001.g0-1" / "worker_0.pt").read_bytes() == bytes(whole)


def test_an_empty_shard_is_a_shard(tmp_path: Path) -> None:
    written = LocalStorage(str(tmp_path)).write_shard(Draft(1, 0, 1), "worker_0.pt", [])

    assert (written.size, written.hash) == (0, f"blake3:{blake3().hexdigest()}")
    assert (tmp_path / "ckpt_step_00001.g0-1" / "worker_0.pt").read_bytes() == b""


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_parts_fill_memory_whatever_their_sizes(parts: list[bytes]) -> None:
    whole = b"".join(parts)

    filled, got, content = read(len(whole), filling(map(memoryview, parts)))

    assert (bytes(filled), got) == (whole, len(whole))
    assert (got, content) == hash_of(filling(map(memoryview, parts)))
    assert content == f"blake3:{blake3(whole).hexdigest()}"


@pytest.mark.parametrize("size", [1, ALIGN, 2**20, 3 * 2**20 + 5])
def test_a_file_in_memory_is_the_file_and_nobody_else_sees_what_is_written(
    tmp_path: Path, size: int
) -> None:
    content = random.Random(size).randbytes(size)
    (tmp_path / "file").write_bytes(content)
    with (tmp_path / "file").open("rb") as file:
        got = mapped(file.fileno(), size)

    assert got is not None
    whole, filled, digest = got
    assert (whole == content, filled) == (True, size)
    assert digest == f"blake3:{blake3(content).hexdigest()}"
    whole[0] ^= 255
    assert (tmp_path / "file").read_bytes() == content


def test_what_cannot_be_in_memory_is_left_to_be_read(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"x" * 10)
    (tmp_path / "empty").touch()

    with (tmp_path / "short").open("rb") as short, (tmp_path / "empty").open("rb") as empty:
        assert [mapped(short.fileno(), 11), mapped(empty.fileno(), 0)] == [None, None]


def test_pages_that_cannot_be_read_are_told_of_and_kill_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 3 * ALIGN)
    with (tmp_path / "file").open("r+b") as file:
        pages = mmap.mmap(file.fileno(), 3 * ALIGN, access=mmap.ACCESS_COPY)
        file.truncate(ALIGN)  # the rest of the mapping has no page any more
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))

    assert [fetched(address + at * ALIGN, ALIGN) for at in range(3)] == [True, False, False]
