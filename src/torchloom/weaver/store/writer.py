"""The one thread that writes records: what waits together is committed together, then answered."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeAlias

from torchloom.weaver.store.sheet import Numbered
from torchloom.weaver.store.snapshot import RecordsLost

__all__ = ["Numbered", "RecordWriter", "Ingest", "Answer"]

Answer: TypeAlias = Callable[[Numbered, int], None]  # called in the writer's thread, after commit

_QUIET = 10.0  # seconds between two lines about what cannot be stored
TOGETHER = 1024  # batches of one transaction, where so many wait
_log = logging.getLogger(__name__)


class Ingest(Protocol):
    """Whoever stores batches, all or none."""

    def write(self, batches: list[Numbered]) -> list[int]: ...
    def close(self) -> None: ...


class RecordWriter:
    """Store batches in the order of their coming and say up to where each life is stored.

    A batch that cannot be stored is not answered: its agent has it still and will send it again.
    """

    def __init__(self, ingest: Ingest, answer: Answer) -> None:
        self._ingest = ingest
        self._answer = answer
        self._waiting: queue.SimpleQueue[Numbered | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="record-writer", daemon=True)
        self.failures = 0
        self.trouble = ""  # why the last ones were not stored; nothing when they were
        self._logged = -_QUIET

    def start(self) -> None:
        self._thread.start()

    def submit(self, batch: Numbered) -> None:
        """Have a batch stored, in the writer's thread."""
        self._waiting.put(batch)

    @property
    def backlog(self) -> int:
        return self._waiting.qsize()

    def stop(self) -> None:
        """Store what waits, then end."""
        self._waiting.put(None)
        self._thread.join()
        self._ingest.close()

    def _run(self) -> None:
        while True:
            group, is_last = self._take()
            if group:
                self._store(group)
            if is_last:
                return

    def _take(self) -> tuple[list[Numbered], bool]:
        group: list[Numbered] = []
        while (batch := self._waiting.get()) is not None:
            group.append(batch)
            if len(group) == TOGETHER or self._waiting.empty():
                return group, False
        return group, True

    def _store(self, group: list[Numbered]) -> None:
        try:
            upto = self._ingest.write(group)
        except RecordsLost as error:
            self.failures += 1
            self.trouble = str(error)
            return
        except Exception as error:  # full disk, server away, poison: drivers share no class
            self.failures += 1
            self.trouble = str(error)
            self._complain(len(group))
            if len(group) > 1:  # one that can never be stored must not hold up the others
                for batch in group:
                    self._store([batch])
            return
        self.trouble = ""
        for batch, number in zip(group, upto, strict=True):
            self._answer(batch, number)

    def _complain(self, count: int) -> None:
        """Log a failure; one that lasts, now and then."""
        if time.monotonic() - self._logged >= _QUIET:
            self._logged = time.monotonic()
            _log.exception("%d batches could not be stored; their agents keep them", count)
