"""The writer rests on a crowded machine, and makes haste when someone waits for it."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from torchloom.checkpoint.layout import Draft
from torchloom.checkpoint.storage import Written
from torchloom.worker.saving.saver import REST, Work, Writer

from ...harness.home import until

pytestmark = pytest.mark.needs("torch")

LARGE = memoryview(bytes(33 * 2**20))


class Chunked:
    """A store that takes a shard in ten chunks, at once."""

    root = "/nowhere"

    def __init__(self) -> None:
        self.chunks = 0
        self.first = threading.Event()

    def write_shard(
        self, draft: Draft, name: str, buffers: Sequence[memoryview], pace: Callable[[], None]
    ) -> Written:
        for _ in range(10):
            self.chunks += 1
            self.first.set()
            pace()
        return Written(len(buffers[0]), "blake3:")


def begun(content: memoryview, is_crowded: bool) -> tuple[Writer, Chunked, list[str]]:
    told: list[str] = []
    store = Chunked()
    note: Callable[[str, dict[str, Any]], None] = lambda kind, _: told.append(kind)  # noqa: E731
    writer = Writer(store, note, lambda: is_crowded)  # type: ignore[arg-type]
    writer.begin(Work(Draft(1, 0, 0), 0, content, {}))
    return writer, store, told


def test_on_a_crowded_machine_it_rests_between_chunks() -> None:
    began = time.monotonic()
    writer, _, told = begun(LARGE, is_crowded=True)

    until(lambda: bool(told))

    assert time.monotonic() - began > 10 * REST * 0.9
    writer.close()


@pytest.mark.parametrize(("content", "is_crowded"), [(LARGE, False), (LARGE[:1000], True)])
def test_else_it_does_not(content: memoryview, is_crowded: bool) -> None:
    began = time.monotonic()
    writer, _, told = begun(content, is_crowded)

    until(lambda: bool(told))

    assert time.monotonic() - began < 10 * REST * 0.9
    writer.close()


def test_who_waits_ends_its_rest() -> None:
    writer, store, told = begun(LARGE, is_crowded=True)
    assert store.first.wait(30)
    began = time.monotonic()

    assert writer.wait(30)

    assert time.monotonic() - began < 9 * REST * 0.9
    assert (store.chunks, told) == (10, ["checkpoint_shard"])
    writer.close()
