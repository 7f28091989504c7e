"""Read and hash checkpoints in the background, one at a time.

The weaver stores the result: a checkpoint found damaged has that state from then on.
"""

import asyncio
import contextlib
import functools
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI

from torchloom import accounts, settings
from torchloom.checkpoint import MANIFEST, BadManifest, Damaged, NotCommitted, open_storage
from torchloom.errors import Failure, LoomError, NotFound
from torchloom.server.plane_access import PlaneAccess
from torchloom.weaver.store.reader import PlaneReader
from torchloom.weaver.store.rows import CheckpointRow
from torchloom.weaver.views import when

_KEPT = 200  # of what was looked at last
_WAITING = 50  # that are not over yet
_UNSEEN = "the plane's machine does not see it; `loom checkpoint verify` reads it where it is"
_NOT_OURS = "the plane reads no store of an account with keys of its own"
_FAILED = "the server failed; its log says why"


Ended = tuple[str, str | None, str]  # how it is, which file is wrong, and why


class TooManyChecks(Failure):
    """Too many checkpoints wait to be read."""

    code = "too_many_checks"
    remedy = "retry when some of them are done"

    def __init__(self) -> None:
        super().__init__(f"{_WAITING} checkpoints wait to be read")


class _Ending(Exception):
    """The server stops; the read under way is abandoned."""


@dataclass(slots=True)
class CheckpointCheck:
    """One reading of a checkpoint: waiting, running, then whole, damaged or failed."""

    row: CheckpointRow
    author: str
    asked_at: float
    state: str = "waiting"
    read: int = 0
    shard: str | None = None
    reason: str = ""
    began: float = 0.0  # by the monotonic clock
    seconds: float | None = None

    @property
    def is_over(self) -> bool:
        return self.state not in ("waiting", "running")

    def begin(self) -> None:
        self.state, self.began = "running", time.monotonic()

    def end(self, state: str, shard: str | None = None, reason: str = "") -> None:
        """Set the outcome; the state is set last, so a reader that sees it also sees the reason."""
        self.shard, self.reason = shard, reason
        self.seconds = round(time.monotonic() - self.began, 3)
        self.state = state

    def shape(self) -> dict[str, Any]:
        return {
            "id": str(self.row.step),
            "job": self.row.job,
            "step": self.row.step,
            "state": self.state,
            "bytes": self.row.bytes,
            "read": self.read,
            "shard": self.shard,
            "reason": self.reason,
            "author": self.author,
            "asked_at": when(self.asked_at),
            "seconds": self.seconds,
        }


class Checks:
    """The checks of this server."""

    def __init__(self, access: PlaneAccess) -> None:
        self._access = access
        self._checks: OrderedDict[tuple[str, int], CheckpointCheck] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, "verify")
        self._is_ending = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, job: str) -> list[dict[str, Any]]:
        """Return the checks of a job, by step."""
        found = [check.shape() for (whose, _), check in self._checks.items() if whose == job]
        return sorted(found, key=lambda shape: int(shape["step"]))

    def get(self, job: str, step: int) -> dict[str, Any]:
        """Return the last check of a step."""
        if (known := self._checks.get((job, step))) is None:
            remedy = "POST to the same path starts one"
            raise NotFound("check of step", str(step), (), remedy)
        return known.shape()

    async def ask(self, job: str, step: int, author: str) -> dict[str, Any]:
        """Request a check of a checkpoint; one under way is not started twice."""
        row = await self._access.read(_committed, self._access.store, job, step)
        known = self._checks.get((job, step))
        if known is not None and not known.is_over:
            return known.shape()
        if len(self._tasks) >= _WAITING:
            raise TooManyChecks
        check = self._checks[job, step] = CheckpointCheck(row, author, time.time())
        self._checks.move_to_end((job, step))
        self._forget()
        task = asyncio.create_task(self._run(check), name=f"verify {job} {step}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return check.shape()

    async def close(self) -> None:
        """Abandon the read under way."""
        self._is_ending.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    def _forget(self) -> None:
        over = [key for key, check in self._checks.items() if check.is_over]
        for key in over[: max(0, len(self._checks) - _KEPT)]:
            del self._checks[key]

    async def _run(self, check: CheckpointCheck) -> None:
        """Read the checkpoint, then report to the weaver; it may have been removed meanwhile."""
        ended: Ended = ("failed", None, _FAILED)
        try:
            work = functools.partial(self._read, check)
            ended = await asyncio.get_running_loop().run_in_executor(self._thread, work)
            if ended[0] in ("whole", "damaged") and not await self._noted(check, *ended[1:]):
                ended = ("failed", None, "it was removed meanwhile")
        finally:
            check.end(*ended)

    async def _noted(self, check: CheckpointCheck, shard: str | None, why: str) -> bool:
        """Report to the weaver; return whether the checkpoint still exists there."""
        row = check.row
        whose: dict[str, Any] = {
            "generation": row.generation,
            "attempt": row.attempt,
            "author": check.author,
        }
        facts = {"job": row.job, "step": row.step, **whose, "name": shard or "", "why": why}
        try:
            await self._access.link.ask("checkpoint_verified", **facts)
        except LoomError as error:
            return error.code != NotFound.code
        return True

    def _read(self, check: CheckpointCheck) -> Ended:
        """Read and hash all files; return the state, the damaged file and the reason."""
        check.begin()
        step = check.row.step
        try:
            account = self._access.files(check.row.job).account
            if account and not check.row.root.startswith("/"):
                return "failed", None, _NOT_OURS
            accounts.within(account, self._verify, check, step)
        except Damaged as error:
            return "damaged", error.name, error.why
        except BadManifest as error:
            return "damaged", MANIFEST, error.why
        except NotCommitted:
            return "failed", None, _UNSEEN
        except LoomError as error:
            return "failed", None, str(error)
        return "whole", None, ""

    def _verify(self, check: CheckpointCheck, step: int) -> None:
        storage = open_storage(check.row.root, settings.environment())
        storage.verify(step, lambda got: self._on_read(check, got))

    def _on_read(self, check: CheckpointCheck, got: int) -> None:
        check.read += got
        if self._is_ending.is_set():
            raise _Ending


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Provide the checks while an app is served."""
    app.state.checks = checks = Checks(app.state.access)
    try:
        yield
    finally:
        await checks.close()


def _committed(store: PlaneReader, job: str, step: int) -> CheckpointRow:
    rows = store.state.find(CheckpointRow, job=job, step=step, state="committed")
    if not rows:
        remedy = f"GET /api/jobs/{job}/checkpoints lists them"
        raise NotFound("committed checkpoint of step", str(step), (), remedy)
    return max(rows, key=lambda row: row.key)
