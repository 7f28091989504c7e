"""What waits together is committed together and answered after; a poisoned batch harms no other."""

import threading
from pathlib import Path

from torchloom.messages.plane import VERSION, Event, Head
from torchloom.weaver.store import DatabasePlace, NumberedBatch, RecordWriter, open_store

from ....harness.home import until

HEAD = Head(VERSION, "j", 0, 0, "i")


def batch(first: int) -> NumberedBatch:
    return NumberedBatch(HEAD, first, [Event(HEAD, "x", first, 0.0)])


class Gate:
    """Stores nothing; notes what it was given together and waits to be opened."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.open = threading.Event()
        self.poison = -1

    def write(self, batches: list[NumberedBatch]) -> list[int]:
        self.groups.append([each.first for each in batches])
        self.open.wait()
        if any(each.first == self.poison for each in batches):
            raise ValueError("poison")
        return [each.first for each in batches]

    def close(self) -> None:
        self.groups.append([])


def test_what_comes_while_one_is_stored_is_stored_together() -> None:
    gate, answers = Gate(), list[int]()
    writer = RecordWriter(gate, lambda _, upto: answers.append(upto))
    writer.start()

    writer.submit(batch(1))
    until(lambda: gate.groups == [[1]])
    for first in (2, 3, 4):
        writer.submit(batch(first))
    gate.open.set()
    writer.stop()

    assert gate.groups == [[1], [2, 3, 4], []]
    assert answers == [1, 2, 3, 4]


def test_a_batch_that_cannot_be_stored_is_not_answered_and_harms_no_other() -> None:
    gate, answers = Gate(), list[int]()
    writer = RecordWriter(gate, lambda _, upto: answers.append(upto))
    gate.poison = 2
    gate.open.set()

    for first in (1, 2, 3):
        writer.submit(batch(first))
    writer.start()
    writer.stop()

    assert gate.groups == [[1, 2, 3], [1], [2], [3], []]
    assert (answers, writer.failures) == ([1, 3], 2)


def test_an_answer_comes_after_the_commit(tmp_path: Path) -> None:
    store = open_store(DatabasePlace(tmp_path))
    seen: list[tuple[int, int]] = []
    writer = store.writer(lambda _, upto: seen.append((upto, len(store.records.events("j")))))
    writer.start()

    for first in range(1, 30):
        writer.submit(batch(first))
    writer.stop()

    assert [upto for upto, _ in seen] == list(range(1, 30))
    assert all(stored >= upto for upto, stored in seen)
    store.close()
