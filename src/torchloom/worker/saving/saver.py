"""Save a rank's part of a checkpoint: copy it to staging memory, write it in the background."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchloom.checkpoint.errors import CheckpointError, StoreUnavailable
from torchloom.checkpoint.layout import Draft, shard_name
from torchloom.checkpoint.placement import deal
from torchloom.checkpoint.storage import Pace, Storage
from torchloom.worker.run.parts import Parts
from torchloom.worker.saving.shard_file import Image, Staging, pickled, signature
from torchloom.worker.saving.tree import Flat

FIRST_RETRY, LAST_RETRY = 0.5, 30.0  # seconds; doubled in between
_LOWEST = 19  # of the nice values
_CLOSING = 5.0  # seconds that a healthy write may take when the writer is closed
_SMALL = 32 * 2**20  # bytes that are written without a pause
REST, MOST_REST = 0.4, 5.0  # seconds to pause after a chunk on a busy machine, and in all


def is_crowded() -> bool:
    """Tell whether more threads are runnable than there are cores; False if unknown."""
    try:
        with open("/proc/loadavg") as file:
            running = int(file.read().split()[3].partition("/")[0])  # this thread, too
    except (OSError, ValueError, IndexError):
        return False
    return running > (os.cpu_count() or running)


Report = Callable[[str, dict[str, Any]], None]
More = Callable[[Draft, Pace], Mapping[str, Any]]  # what is done after a shard is written


@dataclass(frozen=True, slots=True)
class Work:
    """One shard to write: its draft, its bytes, and facts that are reported with it.

    `more` is called when it is written, and returns further facts.
    """

    draft: Draft
    rank: int
    content: memoryview
    facts: dict[str, Any]
    more: More | None = None
    began: float = field(default_factory=time.monotonic)


class _GivenUp(Exception):
    """A newer checkpoint wants the staging memory, or the writer is closed."""


class Writer:
    """A thread that writes one shard at a time. Between two shards, the caller owns its memory.

    The thread starts with the first shard. It and the threads it starts have the lowest priority.
    """

    def __init__(
        self, storage: Storage, report: Report, is_crowded: Callable[[], bool] = is_crowded
    ) -> None:
        self._storage = storage
        self._report = report
        self._is_crowded = is_crowded
        self._changed = threading.Condition()
        self._work: Work | None = None
        self._thread: threading.Thread | None = None
        self._moved = 0.0  # when the store last accepted bytes
        self._is_failing = self._must_give_up = self._is_closed = False
        self._is_reported = True  # the success of the last shard
        self._waiting = 0  # callers; the writer does not pause while there are any
        self._rested = 0.0

    def claim(self, patience: float) -> bool:
        """Wait until the staging memory is free; False if the store accepts nothing for too long.

        A shard that the store has refused before is given up: the caller's state is newer.
        """
        with self._awaited():
            while self._work is not None:
                self._must_give_up |= self._is_failing
                self._changed.notify_all()
                left = max(self._moved, self._work.began) + patience - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def begin(self, work: Work) -> None:
        """Begin to write a shard; the writer must have been claimed."""
        with self._changed:
            self._work, self._moved, self._rested = work, time.monotonic(), 0.0
            self._is_failing = self._must_give_up = self._is_reported = False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="loom-saving", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, limit: float) -> bool:
        """Wait for the last shard; tell whether it was written and reported."""
        with self._awaited():
            self._changed.wait_for(lambda: self._work is None, limit)
            return self._work is None and self._is_reported

    def close(self) -> None:
        """End the thread; a shard that is being retried is given up."""
        with self._changed:
            self._is_closed = True
            self._must_give_up |= self._is_failing
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSING)

    @contextlib.contextmanager
    def _awaited(self) -> Iterator[None]:
        """Hold the lock, and keep the writer from pausing."""
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            try:
                yield
            finally:
                self._waiting -= 1

    def _run(self) -> None:
        _lower_priority()
        while self._has_work():
            self._carry_out()
            with self._changed:
                self._work = None
                self._changed.notify_all()

    def _has_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._work is not None or self._is_closed)
            return self._work is not None

    def _carry_out(self) -> None:
        """Write the shard, with retries, until it is written or given up; report which."""
        work = self._work
        assert work is not None
        delay = FIRST_RETRY
        while True:
            try:
                self._write(work)
                return
            except StoreUnavailable as error:
                if not self._is_failing:
                    self._fail(work, error.why, retrying=True)
                if self._is_wanted(delay):
                    self._fail(work, f"given up: {error.why}")
                    return
                delay = min(2 * delay, LAST_RETRY)
            except _GivenUp:
                self._fail(work, "given up: the store failed, and a newer checkpoint begins")
                return
            except CheckpointError as error:
                self._fail(work, str(error))
                return
            except Exception as error:  # reported, and training continues
                self._fail(work, f"{type(error).__name__}: {error}")
                return

    def _write(self, work: Work) -> None:
        name = shard_name(work.rank)
        written = self._storage.write_shard(work.draft, name, [work.content], self._pace)
        facts = {
            **work.facts,
            **(work.more(work.draft, self._pace) if work.more is not None else {}),
            "step": work.draft.step,
            "generation": work.draft.generation,
            "attempt": work.draft.attempt,
            "name": name,
            "rank": work.rank,
            "size": written.size,
            "hash": written.hash,
            "seconds": time.monotonic() - work.began,
        }
        self._report("checkpoint_shard", facts)
        self._is_reported = True

    def _fail(self, work: Work, why: str, retrying: bool = False) -> None:
        self._is_failing = True
        self._report(
            "checkpoint_failed", {"step": work.draft.step, "why": why, "retrying": retrying}
        )

    def _pace(self) -> None:
        """Note that the store accepted a chunk, and pause while the training needs the cores."""
        if self._may_rest() and self._is_crowded():
            self._rested += REST
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed, REST)
        self._moved = time.monotonic()
        if self._must_give_up:
            raise _GivenUp

    def _may_rest(self) -> bool:
        work = self._work
        is_large = work is not None and len(work.content) > _SMALL
        return is_large and self._rested < MOST_REST and not self._waiting

    def _is_wanted(self, delay: float) -> bool:
        """Wait before the next try; tell whether to give up instead."""
        with self._changed:
            return self._changed.wait_for(lambda: self._must_give_up or self._is_closed, delay)


def _lower_priority() -> None:
    """Run the calling thread, and those it starts, only on idle cores.

    Nice 19 is not low enough: computing threads wait for each other at every operation, and lose a
    whole time slice when one of them is preempted.
    """
    if sys.platform == "linux":  # elsewhere the id of a thread would name a process
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)
        with contextlib.suppress(OSError):  # a sandbox that forbids it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


class Saver:
    """Saves one rank's part of every checkpoint: its share of the common state, and its own.

    `report` gets `checkpoint_shard` and `checkpoint_failed`, mostly in the writer's thread.
    `patience` is how long a store may accept nothing before a save is skipped.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        rank: int,
        world_size: int,
        generation: int,
        attempt: int,
        report: Report,
        patience: float = 30.0,
    ) -> None:
        self._rank, self._world_size = rank, world_size
        self._generation, self._attempt = generation, attempt
        self._report = report
        self._patience = patience
        self._staging = Staging()
        self._image: Image | None = None
        self._writer = Writer(storage, report)
        self._process = os.getpid()

    def prepare(self, shared: Any, own: Any, parts: Parts | None = None) -> None:
        """Allocate the staging memory for such a state, so that its first save only copies."""
        self._check_process()
        if self._writer.claim(self._patience):
            part = _RankPart(shared, own, parts, self._rank, self._world_size)
            self._image_of(part, part.rest(0))

    def save(
        self,
        step: int,
        shared: Any,
        own: Any,
        facts: Mapping[str, Any],
        more: More | None = None,
        parts: Parts | None = None,
    ) -> float:
        """Copy this rank's part of the state and begin to write it; return the seconds this took.

        `shared` is equal on every rank, `own` is this rank's, `parts` are its parts of divided
        tensors. It waits while the last checkpoint is being written; one that the store refuses is
        given up. `more` is called in the writer's
        thread before the part is reported, and returns further facts for that.
        """
        self._check_process()
        began = time.monotonic()
        # It raises before anything is changed.
        part = _RankPart(shared, own, parts, self._rank, self._world_size)
        if not self._writer.claim(self._patience):
            why = f"the store accepted nothing of the last checkpoint for {self._patience:g} s"
            self._report("checkpoint_failed", {"step": step, "why": why, "retrying": False})
            return time.monotonic() - began
        rest = part.rest(step)
        image = self._image_of(part, rest)
        image.fill(part.tensors, rest, alone=is_crowded())
        stall = time.monotonic() - began
        draft = Draft(step, self._generation, self._attempt)
        about = {**facts, "world_size": self._world_size, "stall": stall}
        about |= parts.facts() if parts is not None else {}
        self._writer.begin(Work(draft, self._rank, image.content, about, more))
        return time.monotonic() - began

    def move_on(self, generation: int) -> None:
        """Save for another generation from now on; a write in progress keeps its own."""
        self._generation = generation

    def wait(self, limit: float) -> bool:
        """Wait for the last save; tell whether it was written and reported."""
        self._check_process()
        return self._writer.wait(limit)

    def close(self) -> None:
        """End the writer; a write that fails is given up. In a fork this does nothing."""
        if os.getpid() == self._process:
            self._writer.close()

    def _image_of(self, part: "_RankPart", rest: bytes) -> Image:
        """Return the image for this state: the last one, or a new one in the same memory."""
        wanted = part.signature
        image = self._image
        if image is None or image.signature != wanted or not image.has_room(rest):
            self._image = image = None  # its views would keep the old memory
            image = Image(wanted, 2 * len(rest), self._staging, part.is_on_gpu)
            self._image = image
        return image

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError("only the process that made a Saver may use it, not a fork of it")


class _RankPart:
    """The contents of one rank's shard: its share of the common tensors, its own, skeletons."""

    def __init__(
        self, shared: Any, own: Any, parts: Parts | None, rank: int, world_size: int
    ) -> None:
        everyones, mine = Flat(shared, "shared"), Flat(own, "own")
        sizes = {name: item.nbytes for name, item in everyones.tensors.items()}
        # Beside divided tensors there is little, and ranks read rank 0's file anyway.
        owners = deal(sizes, world_size if parts is None else 1)
        share = {name: item for name, item in everyones.tensors.items() if owners[name] == rank}
        groups = {"shared": share, "own": mine.tensors}
        if parts is not None:
            groups["parts"] = dict(parts.tensors)
        self.tensors = [tensor for group in groups.values() for tensor in group.values()]
        self.signature = signature(groups)
        self.is_on_gpu = any(tensor.is_cuda for tensor in self.tensors)
        self._plain: dict[str, Any] = {"rank": rank, "world_size": world_size}
        self._plain["skeleton"] = {"own": mine.skeleton}
        if rank == 0:
            self._plain["skeleton"]["shared"] = everyones.skeleton

    def rest(self, step: int) -> bytes:
        """Return everything but the tensors, pickled."""
        return pickled({"step": step, **self._plain})
