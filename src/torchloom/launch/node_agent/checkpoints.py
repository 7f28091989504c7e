"""Commit and remove checkpoints for the weaver: this agent's host may see a store that it does not.

What needs the room `checkpoint` is imported when the first one is committed: most agents never do.
"""

import asyncio
import contextlib
import logging
import zlib
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from torchloom.bus.api import BusLost, TooLong
from torchloom.errors import LoomError
from torchloom.messages.plane import Commit, Committed, Message, Remove, Removed

if TYPE_CHECKING:
    from torchloom.checkpoint import Storage

_THREADS = 4  # jobs whose stores are worked on at a time
_LARGEST = 1 << 25  # bytes of a manifest
_LAST = "checkpoints"  # how every root of checkpoints ends
_log = logging.getLogger(__name__)

Wanted: TypeAlias = Commit | Remove
Publish: TypeAlias = Callable[[Message], Awaitable[None]]


class NotSeen(LoomError):
    """The store is not on this host."""

    code = "not_seen"

    def __init__(self, root: str) -> None:
        super().__init__(f"{root} does not exist on this host; another agent has to do it")


class CheckpointWorker:
    """One thing at a time for each job; what is asked again while it is being done is done once."""

    def __init__(self, agent: str, publish: Publish, env: Mapping[str, str]) -> None:
        self._agent = agent
        self._publish = publish
        self._env = env
        self._threads = ThreadPoolExecutor(_THREADS, "store")
        self._turns: dict[str, asyncio.Lock] = {}
        self._under_way: dict[Wanted, asyncio.Task[None]] = {}
        self._cleared: dict[str, int] = {}  # by root: below which generation no drafts are left

    @property
    def is_busy(self) -> bool:
        """Tell whether something is being done."""
        return bool(self._under_way)

    def take(self, wanted: Wanted) -> None:
        """Do something soon, and say what became of it."""
        if wanted not in self._under_way:
            task = asyncio.create_task(self._do(wanted), name="store")
            self._under_way[wanted] = task
            task.add_done_callback(lambda _: self._under_way.pop(wanted, None))

    async def close(self) -> None:
        """Leave what has not begun; the weaver has it done by another."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _do(self, wanted: Wanted) -> None:
        turn = self._turns.setdefault(wanted.head.job, asyncio.Lock())
        async with turn:
            loop = asyncio.get_running_loop()
            said = await loop.run_in_executor(self._threads, self._done, wanted)
        with contextlib.suppress(BusLost, TooLong):  # the weaver asks again
            await self._publish(said)

    def _done(self, wanted: Wanted) -> Committed | Removed:
        """Do it, in a thread; return what became of it."""
        place = code = why = ""
        try:
            place = self._commit(wanted) if isinstance(wanted, Commit) else self._remove(wanted)
        except LoomError as error:
            code, why = error.code, str(error)
        except Exception as error:  # a bug of ours must not leave the weaver without an answer
            _log.exception("the store at %s could not be worked on", wanted.root)
            code, why = "internal", repr(error)
        key = (wanted.step, wanted.generation, wanted.attempt)
        if isinstance(wanted, Remove):
            return Removed(wanted.head, self._agent, *key, code, why)
        return Committed(wanted.head, self._agent, *key, place, code, why)

    def _commit(self, wanted: Commit) -> str:
        from torchloom.checkpoint import AlreadyCommitted, BadManifest, Draft, Manifest

        try:
            text = zlib.decompressobj().decompress(wanted.manifest, _LARGEST)
        except zlib.error as error:
            raise BadManifest(str(error)) from error
        draft = Draft(wanted.step, wanted.generation, wanted.attempt)
        storage = self._storage(wanted.root)
        try:
            place = storage.commit(draft, Manifest.from_json(text))
        except AlreadyCommitted:
            storage.discard(draft)  # it will not be asked for again
            raise
        if wanted.clears:
            self._clear(storage, wanted)
        return place

    def _clear(self, storage: "Storage", wanted: Commit) -> None:
        """Delete what members of older generations left, once: survivors were not ordered to."""
        from torchloom.checkpoint import CheckpointError

        root, generation = wanted.root, wanted.generation
        if generation > self._cleared.get(root, 0):
            with contextlib.suppress(CheckpointError):  # the next commit tries it again
                storage.fence(generation)  # first: a commit that comes late must not find half
                storage.clear_drafts(generation)
                self._cleared[root] = generation

    def _remove(self, wanted: Remove) -> str:
        """Remove a checkpoint; one that has taken its place since stays."""
        from torchloom.checkpoint import BadManifest, Draft, NotCommitted

        storage, draft = self._storage(wanted.root), None
        with contextlib.suppress(NotCommitted, BadManifest):
            draft = storage.manifest(wanted.step).draft
        if draft in (None, Draft(wanted.step, wanted.generation, wanted.attempt)):
            storage.remove(wanted.step)
        return ""

    def _storage(self, root: str) -> "Storage":
        """Return the store at a root of checkpoints; what is none is not touched."""
        from torchloom.checkpoint import BadRoot, open_storage

        is_remote = root.startswith("s3://")
        if root.rpartition("/")[2] != _LAST or not (is_remote or Path(root).is_absolute()):
            raise BadRoot(f"not a root of checkpoints: {root[:200]!r}")
        if not is_remote and not Path(root).is_dir():
            raise NotSeen(root)
        return open_storage(root, self._env)
