"""What every route may use: the weaver's door, and what the plane remembers, read in threads."""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, ParamSpec, TypeVar

from fastapi import Depends
from starlette.requests import HTTPConnection

from torchloom.server.logs.lines import Files
from torchloom.server.weaver_link import WeaverAway, WeaverLink
from torchloom.weaver.store.reader import PlaneReader
from torchloom.weaver.store.rows import JobRow

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 8


class PlaneAccess:
    """One for an app; nothing in it changes anything by itself."""

    def __init__(self, link: WeaverLink, store: PlaneReader, home: Path) -> None:
        self.link = link
        self.store = store
        self.home = home
        self._threads = ThreadPoolExecutor(_THREADS, "read")

    async def read(self, look: Callable[P, T], *args: P.args, **words: P.kwargs) -> T:
        """Return what a look at the database or at files finds; the loop goes on meanwhile."""
        work = functools.partial(look, *args, **words)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def stored(self, job: str) -> JobRow | None:
        """Return a job by its id, as the database has it."""
        return await self.read(self.store.state.one, JobRow, id=job)

    def files(self, job: str) -> Files:
        """Return where the files of a job's run are; called in a thread, as what is read there."""
        row = self.store.state.one(JobRow, id=job)
        return Files(self.home, row.account if row else "")

    async def job(self, name: str) -> str:
        """Return the id of the job that is meant: its id, or what else the weaver knows it by."""
        if await self.stored(name) is not None:
            return name
        found: str = (await self.link.ask("job", job=name))["id"]
        return found

    async def close(self) -> None:
        """Hang up, when the last look is over."""
        self.link.close()
        await asyncio.to_thread(self._threads.shutdown)
        self.store.close()


def access_of(connection: HTTPConnection) -> PlaneAccess:
    """Return the access of the app that serves a connection."""
    access: PlaneAccess = connection.app.state.access
    return access


AccessDep = Annotated[PlaneAccess, Depends(access_of)]

__all__ = ["PlaneAccess", "AccessDep", "WeaverAway", "access_of"]
